"""The data pipeline of freshq: the outcome of every task, and replays under other policies.

Each public name is loaded when it is first used, with PySpark only if it needs that.
"""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__, extra="pipeline")
