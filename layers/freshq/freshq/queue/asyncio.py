"""A queue for asyncio: each verb runs in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from freshq.errors import StoreError
from freshq.model.checks import checked_count
from freshq.model.lifecycle import Settlement
from freshq.queue.admin import Admin
from freshq.queue.attached import AttachedQueue, Records
from freshq.queue.base import BaseQueue
from freshq.queue.core import core_of
from freshq.queue.polling import Interval, poll_for_claims, poll_for_end
from freshq.queue.queue import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Self

    from freshq.model.answers import Claim
    from freshq.model.options import QueueConfig
    from freshq.model.task import Task
    from freshq.queue.core import Verbs
    from freshq.queue.polling import Poll
    from freshq.stores.base import Connection, HeldTask, Store

    ClaimList: TypeAlias = list[Claim]

T = TypeVar("T")
logger = logging.getLogger(__name__)
P = ParamSpec("P")
# The number of connections that a SQL store and boto3 open by default.
MAX_THREADS: Final = 10
# How often a waiting coroutine checks whether this process has put something.
PUT_CHECK_SECONDS: Final = 0.05


class Threads:
    """Runs calls in threads for coroutines. Each thread is started when it is first needed."""

    def __init__(self, max_threads: int, name: str) -> None:
        """Start no thread yet.

        Args:
            max_threads: Most calls at a time; others wait for their turn, in order.
            name: First part of the threads' names.
        """
        self._new_pool = partial(ThreadPoolExecutor, max_threads, name)
        self._pool = self._new_pool()

    async def run(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Return what a call returns, in a thread, with the context variables of the caller.

        If the caller is cancelled, a call that has not begun is dropped. A call that has begun runs to its
        end, because a thread cannot be stopped.

        Args:
            call: What to call.
            undo: Called with the result, in a thread, if nobody awaits it any more.

        Raises:
            Exception: What the call raises.
        """
        pool = self._pool
        job = pool.submit(contextvars.copy_context().run, call)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if undo is not None:
                job.add_done_callback(partial(_undo, undo, pool))
            raise

    async def run_to_end(self, call: Callable[[], T]) -> T:
        """Return what a call returns, in a thread; the call is made even if the caller is cancelled.

        Raises:
            Exception: What the call raises.
        """
        job = self._pool.submit(contextvars.copy_context().run, call)
        return await asyncio.shield(asyncio.wrap_future(job))

    async def finish(self, last: Callable[[], object] = lambda: None) -> None:
        """Wait for all calls, end the threads, and make a last call. Later calls get new threads."""
        pool, self._pool = self._pool, self._new_pool()
        await asyncio.shield(asyncio.to_thread(_finish, pool, last))


def _undo(undo: Callable[[T], object], pool: ThreadPoolExecutor, job: Future[T]) -> None:
    """Undo what a call did, if it did anything."""
    if job.cancelled() or job.exception() is not None:
        return
    call = partial(_logged, partial(undo, job.result()))
    try:
        pool.submit(call)
    except RuntimeError:  # the pool is closing, and waits for this thread, which is its own
        call()


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.exception("could not undo a call that is no longer awaited")


def _finish(pool: ThreadPoolExecutor, last: Callable[[], object]) -> None:
    pool.shutdown(wait=True)
    last()


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
        """Return what a function returns for the connection of the transaction, in a thread."""

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
    held = await threads.run(
        block.__enter__, undo=lambda _held: _leave(block, Lock(), asyncio.CancelledError())
    )
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


class _Awaited:
    """Base class of verbs as coroutine functions.

    Attributes:
        name: Name of the queue.
    """

    def __init__(self, queue: BaseQueue, verbs: Verbs, threads: Threads) -> None:
        """Use the verbs of a queue.

        Args:
            queue: The queue.
            verbs: The queue itself, or its `admin` or `records`.
            threads: Where the verbs run.
        """
        self.name: str = queue.name
        self._verbs = verbs
        self.queue = queue
        self.threads = threads


def _verb(
    method: Callable[Concatenate[Any, P], T], undo: Callable[[BaseQueue, T], None] | None = None
) -> Callable[Concatenate[_Awaited, P], Coroutine[Any, Any, T]]:
    """Return a verb as a coroutine function with the same arguments.

    Args:
        method: The verb.
        undo: Undoes a call that is no longer awaited; None if nothing needs to be undone.
    """

    @wraps(method)
    async def call(self: _Awaited, /, *args: P.args, **kwargs: P.kwargs) -> T:
        verb = partial(getattr(self._verbs, method.__name__), *args, **kwargs)
        return await self.threads.run(verb, None if undo is None else partial(undo, self.queue))

    return call


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


def _report_lost(queue: BaseQueue, tasks: list[Task]) -> None:
    """Log the tasks dequeued for a cancelled coroutine: they are SUCCESS, and nobody received them."""
    for task in tasks:
        logger.warning(
            "queue %r: task %s was dequeued for a coroutine that was cancelled; put it again if it matters",
            queue.name,
            task.task_id,
        )


def _opening(open_queue: Callable[P, BaseQueue]) -> Callable[P, AsyncQueue]:
    """Return a function that opens an `AsyncQueue` as `open_queue` opens a `Queue`."""

    @wraps(open_queue)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AsyncQueue:
        queue = open_queue(*args, **kwargs)
        return AsyncAttachedQueue(queue) if isinstance(queue, AttachedQueue) else AsyncQueue(queue)

    return opened


class AsyncAdmin(_Awaited):
    """`Admin` for coroutines; `AsyncQueue.admin` has its verbs.

    Attributes:
        name: Name of the queue.
        config: The queue's options.
    """

    def __init__(self, queue: BaseQueue, threads: Threads) -> None:
        super().__init__(queue, queue.admin, threads)
        self.config: QueueConfig = queue.admin.config

    now = _verb(Admin.now)
    check = _verb(Admin.check)
    held = _verb(Admin.held)
    recover = _verb(Admin.recover)
    upkeep = _verb(Admin.upkeep)
    flush = _verb(Admin.flush)
    index_dead = _verb(Admin.index_dead)
    take_order_switches = _verb(Admin.take_order_switches)
    take_dead_letter_counts = _verb(Admin.take_dead_letter_counts)


class AsyncRecords(_Awaited):
    """`Records` for coroutines; `AsyncAttachedQueue.records` has its verbs."""

    def __init__(self, queue: AttachedQueue, threads: Threads) -> None:
        super().__init__(queue, queue.records, threads)

    put = _verb(Records.put)
    upsert = _verb(Records.upsert)
    get = _verb(Records.get)
    delete = _verb(Records.delete)
    key = _verb(Records.key)
    id_of = _verb(Records.id_of)
    hold = _verb(Records.hold)
    ready = _verb(Records.ready)
    claim_dead = _verb(Records.claim_dead, _give_back)


class AsyncQueue(_Awaited):
    """A queue on any store whose verbs are coroutines, with the names and arguments of `Queue`.

    Calls run in threads, `max_threads` at a time; the event loop never waits for a store. A poll or a wait
    holds a thread only while it polls.

    If a coroutine is cancelled, its call is dropped if it has not begun; otherwise it runs to its end and the
    answer is dropped. Tasks of a cancelled claim are released immediately, their attempts not counted; if the
    store does not answer, a warning is logged, and the tasks return when their leases expire.

    `async with` closes the queue at the end of the block, after the calls under way.

    Attributes:
        name: Name of the queue.
        admin: What operators, workers and functions call.
        queue: The `Queue` itself, for threads.
        threads: The threads of its calls.
    """

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
        super().__init__(queue, queue, Threads(checked_count("max_threads", max_threads), "freshq-async"))
        self.admin: AsyncAdmin = AsyncAdmin(queue, self.threads)
        # A separate pool, so that calls waiting for a connection cannot block the calls that hold one.
        self._held_threads = Threads(max_threads, "freshq-held")

    memory = staticmethod(_opening(Queue.memory))
    sql = staticmethod(_opening(Queue.sql))
    dynamodb = staticmethod(_opening(Queue.dynamodb))

    create_table = _verb(BaseQueue.create_table)

    put = _verb(BaseQueue.put)
    put_many = _verb(BaseQueue.put_many)

    claim = _verb(BaseQueue.claim, _give_back)
    dequeue = _verb(BaseQueue.dequeue, _report_lost)
    peek = _verb(BaseQueue.peek)

    complete = _verb(BaseQueue.complete)
    complete_many = _verb(BaseQueue.complete_many)
    settle_many = _verb(BaseQueue.settle_many)
    fail = _verb(BaseQueue.fail)
    retry = _verb(BaseQueue.retry)
    release = _verb(BaseQueue.release)
    extend = _verb(BaseQueue.extend)

    cancel = _verb(BaseQueue.cancel)
    bury = _verb(BaseQueue.bury)
    restore = _verb(BaseQueue.restore)
    touch = _verb(BaseQueue.touch)
    reprioritize = _verb(BaseQueue.reprioritize)
    redrive = _verb(BaseQueue.redrive)
    discard = _verb(BaseQueue.discard)
    purge = _verb(BaseQueue.purge)
    pause = _verb(BaseQueue.pause)
    resume = _verb(BaseQueue.resume)

    get = _verb(BaseQueue.get)
    find = _verb(BaseQueue.find)
    contains = _verb(BaseQueue.contains)
    list = _verb(BaseQueue.list)
    stats = _verb(BaseQueue.stats)
    pressure = _verb(BaseQueue.pressure)

    async def paused(self) -> bool:
        """Return whether claims are suspended. A property of `Queue`; here it is awaited."""
        return await self.threads.run(lambda: self.queue.paused)

    async def poll(
        self, limit: int = 1, timeout_seconds: float | None = None, poll_seconds: float = 3.0
    ) -> ClaimList:
        """Claim tasks; wait until there are some. The arguments are those of `Queue.poll`."""
        claim = partial(self.queue.claim, limit)
        poll = poll_for_claims(claim, core_of(self.queue), timeout_seconds, poll_seconds)
        return await self._answer_of(poll, undo=partial(_give_back, self.queue))

    async def wait(
        self, task_id: str, timeout_seconds: float | None = None, poll_seconds: float = 1.0
    ) -> Task:
        """Return a task once it is over. The arguments and errors are those of `Queue.wait`."""
        return await self._answer_of(poll_for_end(self.queue.find, task_id, timeout_seconds, poll_seconds))

    def transaction(self) -> AbstractAsyncContextManager[AsyncHeldTask | None]:
        """Hold the next task in a database transaction, as `Queue.transaction` does. SQL only.

        Write through `await held.run(lambda connection: ...)`. If the coroutine is cancelled, everything is
        rolled back, and the task is claimable as before.

        Returns:
            A context manager that yields the task; None if nothing is claimable or the queue is paused. It
            raises ValueError if the queue is not in a SQL database.
        """
        return held_for_coroutine(self.queue, self.threads, self._held_threads)

    async def close(self) -> None:
        """Wait for the calls under way, flush, and close the connections of this process."""
        await self._held_threads.finish()
        await self.threads.finish(self.queue.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _answer_of(self, poll: Poll[T], undo: Callable[[T], object] | None = None) -> T:
        """Poll until there is an answer, without holding a thread between polls."""

        def undo_answer(answer: T | Interval) -> None:
            if undo is not None and not isinstance(answer, Interval):
                undo(answer)

        while isinstance(answer := await self.threads.run(poll, undo_answer), Interval):
            await _sleep(core_of(self.queue).store, answer)
        return answer


class AsyncAttachedQueue(AsyncQueue):
    """An `AttachedQueue` for coroutines: `AsyncAttachedQueue(Queue.dynamodb(..., attach=True, key=...))`."""

    def __init__(self, queue: AttachedQueue, max_threads: int = MAX_THREADS) -> None:
        """Use a queue of an application's records; the arguments are those of `AsyncQueue`."""
        super().__init__(queue, max_threads)
        self.records: AsyncRecords = AsyncRecords(queue, self.threads)

    enqueue = _verb(AttachedQueue.enqueue)


async def _sleep(store: Store, interval: Interval) -> None:
    """Sleep for an interval, or until this process puts a task if puts end it."""
    if interval.seen is None:
        await asyncio.sleep(interval.seconds)
        return
    end = time.monotonic() + interval.seconds
    while (left := end - time.monotonic()) > 0 and store.put_count() == interval.seen:
        await asyncio.sleep(min(left, PUT_CHECK_SECONDS))
