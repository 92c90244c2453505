"""A discrete-event simulator that runs the policy objects of the queue.

`Source` describes a load, or `read_trace` reads one. `simulate_load` serves it under `OverloadRules`, and
`summarize` measures the outcome. `load_sweep` does so for several policies over a range of loads.
"""

from freshq.simulate.engine import Simulation, simulate_load
from freshq.simulate.load import ArrivalProcess, Burst, Load, ServiceDistribution, Source, read_trace
from freshq.simulate.results import GroupResult, Result, summarize, waits_in_time
from freshq.simulate.sweep import Cell, load_sweep, policies

__all__ = [
    "ArrivalProcess",
    "Burst",
    "Cell",
    "GroupResult",
    "Load",
    "Result",
    "ServiceDistribution",
    "Simulation",
    "Source",
    "load_sweep",
    "policies",
    "read_trace",
    "simulate_load",
    "summarize",
    "waits_in_time",
]
