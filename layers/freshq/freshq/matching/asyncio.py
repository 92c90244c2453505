"""A matching queue for asyncio: each verb runs in a thread."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from freshq.errors import FreshqError, LeaseLost
from freshq.matching.queue import MatchAdmin, MatchQueue
from freshq.stores.threads import MAX_THREADS, Awaited, AwaitedQueue, Threads, opening, verb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from freshq.matching.match import Match
    from freshq.matching.resource import Caller, Resource, ResourceStatus
    from freshq.matching.stores.base import MatchHistories

T = TypeVar("T")
logger = logging.getLogger(__name__)
# Resources or callers that an iterator reads in one call of a thread.
PAGE: Final = 100


def _give_back(queue: MatchQueue, matches: list[Match]) -> None:
    """Release matches that a cancelled coroutine never received."""
    for match in matches:
        try:
            queue.release(match)
        except LeaseLost:
            continue
        except FreshqError as error:
            name = match.resource_id
            logger.warning("resource %s stays MATCHED until its lease expires: %s", name, error)


def _give_back_one(queue: MatchQueue, match: Match | None) -> None:
    _give_back(queue, [] if match is None else [match])


def _awaited(queue: MatchQueue) -> AsyncMatchQueue:
    """Return a queue whose verbs are coroutines."""
    return AsyncMatchQueue(queue)


class AsyncMatchAdmin(Awaited):
    """`MatchAdmin` for coroutines; `AsyncMatchQueue.admin` has its verbs.

    Attributes:
        history: The histories of resources and callers; None if the store keeps none itself.
    """

    def __init__(self, queue: MatchQueue, threads: Threads) -> None:
        super().__init__(queue, queue.admin, threads)
        self.history: MatchHistories | None = queue.admin.history

    now = verb(MatchAdmin.now)
    held = verb(MatchAdmin.held)
    recover = verb(MatchAdmin.recover)


class AsyncMatchQueue(AwaitedQueue):
    """A `MatchQueue` whose verbs are coroutines, with the same names and arguments, on any store.

    Calls run in threads, `max_threads` at a time. `resources` and `callers` are asynchronous iterators.

    If a coroutine is cancelled, its call is dropped if it has not begun; otherwise it runs to its end and the
    answer is dropped. The matches of a cancelled `match` or `request` are released immediately; if the store
    does not answer, a warning is logged, and the resources return when their leases expire. A caller who
    joined the line stays in line until `abandon`.

    `async with` closes the queue at the end of the block, after the calls under way.

    Attributes:
        admin: Upkeep, and the parts that another process needs to settle a match.
        queue: The `MatchQueue` itself, for threads.
        threads: The threads of its calls.
    """

    queue: MatchQueue

    def __init__(self, queue: MatchQueue, max_threads: int = MAX_THREADS) -> None:
        """Use a queue, which other code may use too.

        Args:
            queue: The queue.
            max_threads: Maximum number of simultaneous calls.

        Raises:
            ValueError: If an argument is wrong.
        """
        given: object = queue
        if not isinstance(given, MatchQueue):
            msg = f"queue: must be a MatchQueue, got {type(given).__name__}"
            raise ValueError(msg)
        super().__init__(queue, max_threads)
        self.admin: AsyncMatchAdmin = AsyncMatchAdmin(queue, self.threads)

    memory = staticmethod(opening(MatchQueue.memory, _awaited))
    sql = staticmethod(opening(MatchQueue.sql, _awaited))
    dynamodb = staticmethod(opening(MatchQueue.dynamodb, _awaited))

    register = verb(MatchQueue.register)
    unregister = verb(MatchQueue.unregister)
    get = verb(MatchQueue.get)
    offer = verb(MatchQueue.offer)
    withdraw = verb(MatchQueue.withdraw)
    depths = verb(MatchQueue.depths)
    waiting = verb(MatchQueue.waiting)

    match = verb(MatchQueue.match, _give_back)
    request = verb(MatchQueue.request, _give_back_one)
    abandon = verb(MatchQueue.abandon)
    complete = verb(MatchQueue.complete)
    release = verb(MatchQueue.release)
    extend = verb(MatchQueue.extend)

    configure = verb(MatchQueue.configure)
    create_table = verb(MatchQueue.create_table)
    delete_table = verb(MatchQueue.delete_table)

    def resources(self, status: ResourceStatus | str | None = None) -> AsyncIterator[Resource]:
        """Yield the registered resources in any order; `status` is as in `MatchQueue.resources`."""
        return self._each(lambda: self.queue.resources(status))

    def callers(self) -> AsyncIterator[Caller]:
        """Yield the waiting callers in order."""
        return self._each(self.queue.callers)

    async def _each(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """Yield the items of an iterator, read in threads."""
        iterator = await self.threads.run(begin)
        while page := await self.threads.run(lambda: list(islice(iterator, PAGE))):
            for each in page:
                yield each
