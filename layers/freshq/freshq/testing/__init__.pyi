# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.testing.tasks import Fate as Fate
from freshq.testing.tasks import FaultyStore as FaultyStore
from freshq.testing.tasks import ManualClock as ManualClock
from freshq.testing.tasks import assert_nothing_put as assert_nothing_put
from freshq.testing.tasks import assert_put as assert_put
from freshq.testing.tasks import drain as drain
from freshq.testing.tasks import make_task as make_task
