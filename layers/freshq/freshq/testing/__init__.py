"""Help for the tests of applications that use freshq: a clock to turn, a drain, assertions, faults.

`pytest_plugins = ["freshq.testing.plugin"]` in a `conftest.py` adds fixtures; nothing here needs pytest.
"""

from freshq.testing.clock import ManualClock
from freshq.testing.draining import Fate, drain
from freshq.testing.faults import FaultyStore
from freshq.testing.tasks import assert_nothing_put, assert_put, make_task

__all__ = [
    "Fate",
    "FaultyStore",
    "ManualClock",
    "assert_nothing_put",
    "assert_put",
    "drain",
    "make_task",
]
