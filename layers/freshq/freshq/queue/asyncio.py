"""A queue for asyncio: each verb runs in a thread."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from typing_extensions import override

from freshq.errors import StoreError
from freshq.model.checks import checked_id
from freshq.model.lifecycle import Settlement
from freshq.queue.admin import Admin
from freshq.queue.attached import AttachedQueue, Records
from freshq.queue.base import BaseQueue
from freshq.queue.core import core_of
from freshq.queue.polling import EndsPoll, Interval, poll_for_claims
from freshq.queue.queue import Queue
from freshq.stores.held import continue_from
from freshq.stores.threads import MAX_THREADS, Awaited, AwaitedQueue, Threads, opening, verb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from freshq.model.answers import Claim, Claims
    from freshq.model.options import QueueConfig
    from freshq.model.task import Task
    from freshq.queue.polling import Poll
    from freshq.stores.base import Connection
    from freshq.stores.held import HeldTask

    ClaimList: TypeAlias = Claims

T = TypeVar("T")
logger = logging.getLogger(__name__)


class AsyncHeldTask:
    """A task held by the lock of its row, for coroutines.

    Attributes:
        task: The task, as if it had been claimed.
    """

    def __init__(self, held: HeldTask, threads: Threads, lock: Lock) -> None:
        """Use a held task.

        Args:
            held: The task.
            threads: Where the connection is used.
            lock: Held while a thread uses the connection. Only one thread may, even after its coroutine was
                cancelled.
        """
        self.task: Task = held.task
        self._held = held
        self._threads = threads
        self._lock = lock

    async def run(self, function: Callable[[Connection], T]) -> T:
        """Call a function with the connection of the transaction in a thread, and return its result."""

        def call() -> T:
            with self._lock:
                return function(self._held.connection)

        return await self._threads.run(call)

    @property
    def result(self) -> Any:
        """A JSON value to keep with the task; set it in the block."""
        return self._held.result

    @result.setter
    def result(self, value: Any) -> None:
        self._held.result = value


@asynccontextmanager
async def held_for_coroutine(
    queue: BaseQueue, threads: Threads, held_threads: Threads
) -> AsyncIterator[AsyncHeldTask | None]:
    """Hold the next task of a queue in a transaction for the duration of the block.

    Args:
        queue: The queue.
        threads: Look for a task, perhaps waiting for a connection.
        held_threads: Use the connection afterwards.

    Raises:
        ValueError: If the queue is not in a SQL database.
    """
    block = queue.transaction()
    inside = copy_context()
    held = await threads.run(
        partial(inside.run, block.__enter__),
        undo=lambda _held: _leave(block, Lock(), asyncio.CancelledError()),
    )
    continue_from(inside)
    lock = Lock()
    try:
        yield None if held is None else AsyncHeldTask(held, held_threads, lock)
    except BaseException as error:
        if not await held_threads.run_to_end(partial(_leave, block, lock, error)):
            raise
    else:
        await held_threads.run_to_end(partial(_leave, block, lock))


def _leave(
    block: AbstractContextManager[object], lock: Lock, error: BaseException | None = None
) -> bool | None:
    """Leave a transaction once no thread uses its connection; return whether it handled the error.

    A CancelledError ends it as if the process had died.
    """
    with lock:
        return block.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _give_back(queue: BaseQueue, claims: list[Claim]) -> None:
    """Release claims that a cancelled coroutine never received."""
    releases = [Settlement.release(claim) for claim in claims]
    try:
        answers: Sequence[object] = queue.settle_many(releases)
    except StoreError as error:
        answers = [error] * len(claims)
    for claim, answer in zip(claims, answers, strict=True):
        if isinstance(answer, StoreError):
            logger.warning("task %s stays TAKEN until its lease expires: %s", claim.task.task_id, answer)


def _awaited(queue: BaseQueue) -> AsyncQueue:
    """Return a queue with its verbs awaited."""
    return AsyncAttachedQueue(queue) if isinstance(queue, AttachedQueue) else AsyncQueue(queue)


class AsyncAdmin(Awaited):
    """`Admin` for coroutines; `AsyncQueue.admin` has its verbs.

    Attributes:
        name: Name of the queue.
    """

    def __init__(self, queue: BaseQueue, threads: Threads) -> None:
        super().__init__(queue, queue.admin, threads)
        self.name: str = queue.name

    @property
    def config(self) -> QueueConfig:
        """The queue's options as last read; before the first verb, the options that this process named."""
        config: QueueConfig = self.queue.admin.config
        return config

    now = verb(Admin.now)
    check = verb(Admin.check)
    held = verb(Admin.held)
    recover = verb(Admin.recover)
    upkeep = verb(Admin.upkeep)
    flush = verb(Admin.flush)
    exact_count_units = verb(Admin.exact_count_units)
    take_order_switches = verb(Admin.take_order_switches)
    take_dead_letter_counts = verb(Admin.take_dead_letter_counts)


class AsyncRecords(Awaited):
    """`Records` for coroutines; `AsyncAttachedQueue.records` has its verbs."""

    def __init__(self, queue: AttachedQueue, threads: Threads) -> None:
        super().__init__(queue, queue.records, threads)

    put = verb(Records.put)
    upsert = verb(Records.upsert)
    get = verb(Records.get)
    delete = verb(Records.delete)
    key = verb(Records.key)
    id_of = verb(Records.id_of)
    hold = verb(Records.hold)
    ready = verb(Records.ready)
    claim_dead = verb(Records.claim_dead, _give_back)


class AsyncQueue(AwaitedQueue):
    """A `Queue` whose verbs are coroutines, with the same names and arguments, on any store.

    Calls run in threads, `max_threads` at a time; the event loop never waits for a store. A poll or a wait
    holds a thread only while it polls.

    If a coroutine is cancelled, its call is dropped if it has not begun; otherwise it runs to its end and the
    answer is dropped. Tasks of a cancelled claim are released immediately, their attempts not counted; if the
    store does not answer, a warning is logged, and the tasks return when their leases expire.

    `async with` closes the queue at the end of the block, after the calls under way.

    Attributes:
        name: Name of the queue.
        admin: The methods for operators, workers and functions.
        queue: The `Queue` itself, for threads.
        threads: The threads of its calls.

    Examples:
        >>> import asyncio
        >>> async def put():
        ...     async with AsyncQueue.memory() as queue:
        ...         return (await queue.put("work", task_id="a")).task_id
        >>> asyncio.run(put())
        'a'
    """

    queue: BaseQueue

    def __init__(self, queue: BaseQueue, max_threads: int = MAX_THREADS) -> None:
        """Use a queue, which other code may use too.

        Args:
            queue: The queue.
            max_threads: Most calls at a time. In a SQL database, beyond its `max_connections` calls wait for
                a connection.

        Raises:
            ValueError: If an argument is wrong.
        """
        given: object = queue
        if not isinstance(given, BaseQueue):
            msg = f"queue: must be a Queue, got {type(given).__name__}; to open one, AsyncQueue.sql(url)"
            raise ValueError(msg)
        super().__init__(queue, max_threads)
        self.name: str = queue.name
        self.admin: AsyncAdmin = AsyncAdmin(queue, self.threads)
        # A separate pool, so that calls waiting for a connection cannot block the calls that hold one.
        self._held_threads = Threads(max_threads, "freshq-held")

    memory = staticmethod(opening(Queue.memory, _awaited))
    sql = staticmethod(opening(Queue.sql, _awaited))
    dynamodb = staticmethod(opening(Queue.dynamodb, _awaited))

    create_table = verb(BaseQueue.create_table)
    configure = verb(BaseQueue.configure)

    put = verb(BaseQueue.put)
    put_many = verb(BaseQueue.put_many)

    peek = verb(BaseQueue.peek)

    complete = verb(BaseQueue.complete)
    settle_many = verb(BaseQueue.settle_many)
    fail = verb(BaseQueue.fail)
    retry = verb(BaseQueue.retry)
    release = verb(BaseQueue.release)
    extend = verb(BaseQueue.extend)

    cancel = verb(BaseQueue.cancel)
    reprioritize = verb(BaseQueue.reprioritize)
    redrive = verb(BaseQueue.redrive)
    purge = verb(BaseQueue.purge)
    pause = verb(BaseQueue.pause)
    resume = verb(BaseQueue.resume)
    paused = verb(BaseQueue.paused)

    get = verb(BaseQueue.get)
    list = verb(BaseQueue.list)
    stats = verb(BaseQueue.stats)
    pressure = verb(BaseQueue.pressure)

    async def claim(
        self, limit: int = 1, *, lease_seconds: float | None = None, wait_seconds: float | None = 0
    ) -> ClaimList:
        """Claim tasks. The arguments and errors are as in `Queue.claim`."""
        claim = partial(self.queue.claim, limit, lease_seconds=lease_seconds)
        undo = partial(_give_back, self.queue)
        if wait_seconds == 0:
            return await self.threads.run(claim, undo)
        return await answer_in_threads(
            self.threads, poll_for_claims(claim, core_of(self.queue), wait_seconds), undo
        )

    async def wait(
        self, task_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = 1.0
    ) -> Task:
        """Return a task once it has ended. The arguments and errors are as in `Queue.wait`."""
        ids = [checked_id(task_id)]
        poll = EndsPoll(core_of(self.queue), ids, timeout_seconds, poll_seconds)
        return (await answer_in_threads(self.threads, poll))[0]

    async def wait_many(
        self, task_ids: Iterable[str], *, timeout_seconds: float | None = None, poll_seconds: float = 1.0
    ) -> AsyncIterator[Task]:
        """Yield tasks as they end. The arguments and errors are as in `Queue.wait_many`."""
        poll = EndsPoll(core_of(self.queue), task_ids, timeout_seconds, poll_seconds)
        while ended := await answer_in_threads(self.threads, poll):
            for task in ended:
                yield task

    def transaction(self) -> AbstractAsyncContextManager[AsyncHeldTask | None]:
        """Hold the next task in a database transaction, as `Queue.transaction` does. SQL only.

        Write through `await held.run(lambda connection: ...)`. If the coroutine is cancelled, everything is
        rolled back, and the task is claimable as before.

        Returns:
            A context manager that yields the task; None if nothing is claimable or the queue is paused. It
            raises ValueError if the queue is not in a SQL database.
        """
        return held_for_coroutine(self.queue, self.threads, self._held_threads)

    @override
    async def close(self) -> None:
        """Wait for the calls under way, flush, and close the connections of this process."""
        await self._held_threads.finish()
        await super().close()


class AsyncAttachedQueue(AsyncQueue):
    """An `AttachedQueue` for coroutines: `AsyncAttachedQueue(Queue.dynamodb(..., attach=True, key=...))`."""

    def __init__(self, queue: AttachedQueue, max_threads: int = MAX_THREADS) -> None:
        """Use a queue of an application's records; it takes the arguments of `AsyncQueue`."""
        super().__init__(queue, max_threads)
        self.records: AsyncRecords = AsyncRecords(queue, self.threads)

    put = verb(AttachedQueue.put)


async def answer_in_threads(threads: Threads, poll: Poll[T], undo: Callable[[T], object] | None = None) -> T:
    """Poll until there is an answer, without holding a thread between polls.

    Args:
        threads: Where polls run.
        poll: The poll.
        undo: Called with the answer if nobody awaits it any more.
    """

    def undo_answer(answer: T | Interval) -> None:
        if undo is not None and not isinstance(answer, Interval):
            undo(answer)

    while isinstance(answer := await threads.run(poll, undo_answer), Interval):
        await _sleep(answer)
    return answer


async def _sleep(interval: Interval) -> None:
    """Sleep for an interval, or until its signal ends it."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    signal = interval.signal
    with signal.waiting(), signal.calling(wake), suppress(TimeoutError):
        if signal.count == interval.seen:
            await asyncio.wait_for(woken.wait(), interval.seconds)
