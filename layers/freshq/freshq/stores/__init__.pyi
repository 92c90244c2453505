# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.model.answers import Claims as Claims
from freshq.model.answers import DeadLetterCounts as DeadLetterCounts
from freshq.model.new_task import Parent as Parent
from freshq.model.task import Attempt as Attempt
from freshq.stores.base import OnConflict as OnConflict
from freshq.stores.base import Stats as Stats
from freshq.stores.base import Store as Store
from freshq.stores.held import HeldTask as HeldTask
