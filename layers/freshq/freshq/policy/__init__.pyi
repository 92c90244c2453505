# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.policy.backlog_limit import BacklogLimit as BacklogLimit
from freshq.policy.backlog_limit import WhenFull as WhenFull
from freshq.policy.limits import ConcurrencyLimit as ConcurrencyLimit
from freshq.policy.limits import RetryBudget as RetryBudget
from freshq.policy.limits import SharedBucket as SharedBucket
from freshq.policy.order import Order as Order
from freshq.policy.order import OrderSwitch as OrderSwitch
from freshq.policy.pressure import AdmissionLimit as AdmissionLimit
from freshq.policy.pressure import Pressure as Pressure
from freshq.policy.retry import Backoff as Backoff
from freshq.policy.rules import CodelRule as CodelRule
from freshq.policy.rules import ReserveRule as ReserveRule
from freshq.policy.shedding import ShedReason as ShedReason
from freshq.policy.value import Decay as Decay
