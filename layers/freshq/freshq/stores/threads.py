"""Run the verbs of a queue in threads, so that coroutines can await them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from typing_extensions import override

from freshq.errors import RefusedError, StoreError, is_shortage
from freshq.model.checks import checked_count
from freshq.model.forks import forget_in_child, fulfil
from freshq.stores.base import LentConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Self

T = TypeVar("T")
QueueT = TypeVar("QueueT")
AwaitedT = TypeVar("AwaitedT")
P = ParamSpec("P")
logger = logging.getLogger(__name__)
# The number of connections that a SQL store and boto3 open by default.
MAX_THREADS: Final = 10


class Threads:
    """Runs calls in threads for coroutines. Each thread is started when it is first needed."""

    def __init__(self, max_threads: int, name: str) -> None:
        """Start no thread yet.

        Args:
            max_threads: Maximum number of simultaneous calls; further calls wait for their turn, in order.
            name: First part of the threads' names.
        """
        self._max_threads = max_threads
        self._name = name
        self.forget_parent()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Start new threads when they are needed: a forked child has none of its parent's."""
        self._has_threads = threading.Event()  # not a method: the threads would keep the pool from ending
        self._pool = ThreadPoolExecutor(self._max_threads, self._name, initializer=self._has_threads.set)

    async def run(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Run a call in a thread, with the context variables of the caller, and return its result.

        If the caller is cancelled, a call that has not begun is dropped. A call that has begun runs to its
        end, because a thread cannot be stopped.

        Args:
            call: What to call.
            undo: Called with the result, in a thread, if nobody awaits it any more.

        Raises:
            RefusedError: After `finish`.
            StoreError: If the system has no thread left, and this object none. The call is not made.
            Exception: The exception of the call.
        """
        job = self._begin(call)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if undo is not None:
                job.add_done_callback(partial(self._undo, undo))
            raise

    async def run_to_end(self, call: Callable[[], T]) -> T:
        """Run a call in a thread and return its result; it is made even if the caller is cancelled.

        Raises:
            Exception: The exception of the call.
        """
        return await asyncio.shield(asyncio.wrap_future(self._begin(call)))

    def _begin(self, call: Callable[[], T]) -> Future[T]:
        job: Future[T] = Future()
        try:
            self._pool.submit(_work, job, partial(contextvars.copy_context().run, call))
        except RuntimeError as error:
            if not is_shortage(error):  # the pool is shut down
                raise RefusedError("queue: closed; open another one") from None
            if not self._has_threads.is_set():  # the pool keeps the call, and makes it later unless cancelled
                job.cancel()
                msg = f"the system is short of a resource, nothing was done; try again: {error}"
                raise StoreError(msg) from None
        return job

    async def finish(self, last: Callable[[], object] = lambda: None) -> None:
        """Wait for all calls, end the threads, and make a last call. Later calls raise RefusedError."""
        await asyncio.shield(asyncio.to_thread(_finish, self._pool, last))

    def _undo(self, undo: Callable[[T], object], job: Future[T]) -> None:
        """Undo the effects of a call, if any."""
        if job.cancelled() or job.exception() is not None:
            return
        call = partial(_logged, partial(undo, job.result()))
        try:
            self._begin(call)
        except RefusedError:  # the pool is closing, and waits for this very thread
            call()


def _work(job: Future[T], call: Callable[[], T]) -> None:
    """Make a call for a job, unless it was cancelled."""
    if job.set_running_or_notify_cancel():
        fulfil(job, call)


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.exception("could not undo a call that is no longer awaited")


def _finish(pool: ThreadPoolExecutor, last: Callable[[], object]) -> None:
    pool.shutdown(wait=True)
    last()


class Lent(LentConnection):
    """A connection for asyncio that its coroutine lends to the thread of its call, for pieces of work."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[tuple[Callable[[Any], Any], Future[Any]]] = self._loop.create_future()
        self._answer: Future[Any] = Future()
        self._is_over = False

    @override
    def run(self, work: Callable[[Any], T]) -> T:
        answer: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._ask, work, answer)
        return answer.result()

    def _ask(self, work: Callable[[Any], Any], answer: Future[Any]) -> None:
        if self._is_over:
            answer.cancel()
        else:
            self._asked.set_result((work, answer))

    async def serve(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in a thread and return its result, and do its work on the connection in this coroutine.

        So a cancelled caller ends the work like any other use of its connection.
        """
        job = asyncio.ensure_future(call)
        try:
            while not job.done():
                await asyncio.wait((job, self._asked), return_when=asyncio.FIRST_COMPLETED)
                if self._asked.done():
                    work, self._answer = self._asked.result()
                    self._asked = self._loop.create_future()
                    await self._do(work, self._answer)
            return await job
        finally:
            self._is_over = True
            job.cancel()
            self._answer.cancel()
            if self._asked.done():
                self._asked.result()[1].cancel()

    async def _do(self, work: Callable[[Any], Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(await self.connection.run_sync(work))
        except Exception as error:  # noqa: BLE001 - the call in the thread raises it
            answer.set_exception(error)


def _lent(given: Any) -> Lent | None:
    """Return a connection for asyncio, ready to lend; None if it is not for asyncio. The store checks it."""
    if hasattr(given, "run_sync"):  # SQLAlchemy's connections and sessions for asyncio have this attribute
        return Lent(given)
    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(given, psycopg.AsyncConnection):
        return None
    from freshq.stores.sql.postgresql import LentAsync  # noqa: PLC0415 - most queues need no SQL

    return Lent(LentAsync(given))


class Awaited:
    """Base class of verbs as coroutine functions.

    Attributes:
        queue: The queue itself, for threads.
        threads: Where the verbs run.
    """

    def __init__(self, queue: Any, verbs: object, threads: Threads) -> None:
        """Use the verbs of a queue.

        Args:
            queue: The queue.
            verbs: The queue itself, or a part such as its `admin`.
            threads: Where the verbs run.
        """
        self.queue = queue
        self.threads = threads
        self._verbs = verbs

    def __repr__(self) -> str:
        """Return the class and the queue, without secrets."""
        return f"{type(self).__name__}({self.queue!r})"


class AwaitedQueue(Awaited):
    """Base class of queues whose verbs are coroutine functions; `async with` closes them."""

    def __init__(self, queue: Any, max_threads: int) -> None:
        """Use a queue; at most `max_threads` calls run at a time.

        Raises:
            ValueError: If `max_threads` is wrong.
        """
        super().__init__(queue, queue, Threads(checked_count("max_threads", max_threads), "freshq-async"))

    async def close(self) -> None:
        """Wait for the calls under way, and close the queue."""
        await self.threads.finish(self.queue.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def verb(
    method: Callable[Concatenate[Any, P], T], undo: Callable[[Any, T], None] | None = None
) -> Callable[Concatenate[Awaited, P], Coroutine[Any, Any, T]]:
    """Return a verb as a coroutine function with the same arguments.

    Args:
        method: The verb.
        undo: Undoes a call that is no longer awaited, given the queue and the answer; None if there is
            nothing to undo.
    """

    @wraps(method)
    async def call(self: Awaited, /, *args: P.args, **kwargs: P.kwargs) -> T:
        lent = _lent(kwargs.get("connection"))
        changed: dict[str, Any] = {} if lent is None else {"connection": lent}
        verb = partial(getattr(self._verbs, method.__name__), *args, **kwargs | changed)
        answer = self.threads.run(verb, None if undo is None else partial(undo, self.queue))
        return await (answer if lent is None else lent.serve(answer))

    return call


def opening(open_queue: Callable[P, QueueT], awaited: Callable[[QueueT], AwaitedT]) -> Callable[P, AwaitedT]:
    """Return a function that opens a queue as `open_queue` does, with verbs as coroutines."""

    @wraps(open_queue)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AwaitedT:
        return awaited(open_queue(*args, **kwargs))

    return opened
