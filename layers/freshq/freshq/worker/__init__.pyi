# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.model.answers import Busy as Busy
from freshq.model.answers import Reject as Reject
from freshq.model.answers import Retry as Retry
from freshq.worker.handlers import Handler as Handler
from freshq.worker.handlers import Handlers as Handlers
from freshq.worker.handlers import PutOptions as PutOptions
from freshq.worker.handlers import TypedReceipt as TypedReceipt
from freshq.worker.options import WorkerOptions as WorkerOptions
from freshq.worker.report import WorkerState as WorkerState
from freshq.worker.report import WorkerStatus as WorkerStatus
from freshq.worker.runner import Runner as Runner
from freshq.worker.runner import TransactionRunner as TransactionRunner
from freshq.worker.worker import Worker as Worker
from freshq.worker.worker import Workers as Workers
