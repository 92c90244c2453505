# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.model.options import QueueConfig as QueueConfig
from freshq.model.options import QueueOptions as QueueOptions
from freshq.model.options import SqlOptions as SqlOptions
from freshq.queue.admin import Admin as Admin
from freshq.queue.asyncio import AsyncAdmin as AsyncAdmin
from freshq.queue.asyncio import AsyncAttachedQueue as AsyncAttachedQueue
from freshq.queue.asyncio import AsyncHeldTask as AsyncHeldTask
from freshq.queue.asyncio import AsyncQueue as AsyncQueue
from freshq.queue.asyncio import AsyncRecords as AsyncRecords
from freshq.queue.attached import AttachedQueue as AttachedQueue
from freshq.queue.attached import Records as Records
from freshq.queue.base import BaseQueue as BaseQueue
from freshq.queue.queue import Queue as Queue
from freshq.queue.upkeep import Portion as Portion
