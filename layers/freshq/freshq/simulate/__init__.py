"""A discrete-event simulator over the policy objects that the worker uses.

`Source` describes a load, or `read_trace` reads one; `run` serves it under `OverloadRules`; `summarize`
measures what came out. `sweep` does so for several policies over a range of loads.
"""

from freshq.simulate.engine import Run, run
from freshq.simulate.load import Arrivals, Burst, Load, Service, Source
from freshq.simulate.results import GroupResult, Result, summarize, waits_in_time
from freshq.simulate.sweep import Cell, policies, sweep
from freshq.simulate.trace import read_trace

__all__ = [
    "Arrivals",
    "Burst",
    "Cell",
    "GroupResult",
    "Load",
    "Result",
    "Run",
    "Service",
    "Source",
    "policies",
    "read_trace",
    "run",
    "summarize",
    "sweep",
    "waits_in_time",
]
