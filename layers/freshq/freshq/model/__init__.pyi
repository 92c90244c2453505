# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.model.answers import Claim as Claim
from freshq.model.answers import Page as Page
from freshq.model.answers import PutOutcome as PutOutcome
from freshq.model.answers import Receipt as Receipt
from freshq.model.answers import Waiting as Waiting
from freshq.model.answers import WaitsFor as WaitsFor
from freshq.model.codec import Codec as Codec
from freshq.model.codec import JsonCodec as JsonCodec
from freshq.model.codec import Kinds as Kinds
from freshq.model.lifecycle import Settlement as Settlement
from freshq.model.new_task import NewTask as NewTask
from freshq.model.task import Task as Task
from freshq.model.task import TaskStatus as TaskStatus
from freshq.model.task import Verb as Verb
