# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.matching.asyncio import AsyncMatchAdmin as AsyncMatchAdmin
from freshq.matching.asyncio import AsyncMatchQueue as AsyncMatchQueue
from freshq.matching.match import Match as Match
from freshq.matching.queue import MatchAdmin as MatchAdmin
from freshq.matching.queue import MatchConfig as MatchConfig
from freshq.matching.queue import MatchQueue as MatchQueue
from freshq.matching.queue import MatchQueueOptions as MatchQueueOptions
from freshq.matching.resource import Caller as Caller
from freshq.matching.resource import CallerStatus as CallerStatus
from freshq.matching.resource import Resource as Resource
from freshq.matching.resource import ResourceStatus as ResourceStatus
from freshq.matching.stores.base import MatchHistories as MatchHistories
from freshq.matching.stores.base import MatchStore as MatchStore
