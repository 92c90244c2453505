# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.errors import FreshqError as FreshqError
from freshq.errors import LeaseLost as LeaseLost
from freshq.errors import NotFound as NotFound
from freshq.errors import Overloaded as Overloaded
from freshq.errors import StoreError as StoreError
from freshq.matching.queue import MatchQueue as MatchQueue
from freshq.model.answers import Busy as Busy
from freshq.model.answers import Claim as Claim
from freshq.model.answers import PutOutcome as PutOutcome
from freshq.model.answers import Receipt as Receipt
from freshq.model.answers import Reject as Reject
from freshq.model.answers import Retry as Retry
from freshq.model.lifecycle import Settlement as Settlement
from freshq.model.new_task import NewTask as NewTask
from freshq.model.task import Task as Task
from freshq.model.task import TaskStatus as TaskStatus
from freshq.policy.order import Order as Order
from freshq.policy.retry import Backoff as Backoff
from freshq.queue.asyncio import AsyncQueue as AsyncQueue
from freshq.queue.attached import AttachedQueue as AttachedQueue
from freshq.queue.queue import Queue as Queue
from freshq.stores.base import OnConflict as OnConflict
from freshq.stores.base import Stats as Stats
from freshq.worker.handlers import Handlers as Handlers
from freshq.worker.worker import Worker as Worker
