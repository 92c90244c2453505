"""Help for tests of applications: a clock to advance, a function that runs due tasks, assertions, faults.

pytest finds the fixtures of `freshq.testing.plugin` by itself; nothing else here needs pytest. A name is
loaded when it is first used, so that a run of pytest without tests of freshq loads next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshq.testing.faults import FaultyStore
    from freshq.testing.tasks import Fate, ManualClock, assert_nothing_put, assert_put, drain, make_task

__all__ = [
    "Fate",
    "FaultyStore",
    "ManualClock",
    "assert_nothing_put",
    "assert_put",
    "drain",
    "make_task",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        if name not in __all__:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        module = "faults" if name == "FaultyStore" else "tasks"
        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
