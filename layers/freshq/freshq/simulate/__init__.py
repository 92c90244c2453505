"""A discrete-event simulator that runs the policy objects of the queue.

`Source` describes a load, or `read_recording` reads one. `simulate_load` serves it under `OverloadRules`, and
`summarize` measures the outcome. `load_sweep` does so for several policies over a range of loads.
"""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
