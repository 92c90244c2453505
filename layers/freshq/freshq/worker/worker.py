"""Work a queue: start and stop."""

from __future__ import annotations

import logging
import time
from concurrent.futures import as_completed, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import quoted
from freshq.model.checks import checked_seconds
from freshq.queue.base import blocking_queue
from freshq.queue.core import core_of, transactions_of
from freshq.worker.batches import batch_rules_of
from freshq.worker.lease_loop import GIVE_BACK_SECONDS, LeaseLoop
from freshq.worker.limits import StartLimits
from freshq.worker.loop import EndRequest
from freshq.worker.options import parse_worker_options
from freshq.worker.report import RunReport, WorkerState, WorkerStatus, merged, together
from freshq.worker.run import in_thread
from freshq.worker.runner import (
    CoroutineRunner,
    check_handlers,
    checked_runner,
    codec_of,
    instrumented,
    load_object,
)
from freshq.worker.transaction_loop import TransactionLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager
    from typing import Self, Unpack

    from freshq.policy.batching import BatchRule
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.queue.stopping import Until
    from freshq.worker.limits import RunBreaker
    from freshq.worker.loop import WorkLoop
    from freshq.worker.options import WorkerConfig, WorkerOptions
    from freshq.worker.runner import Runner, TransactionRunner

logger = logging.getLogger(__name__)
# Time limit after the drain for the calls under way, and again for closing the queue.
END_SECONDS: Final = 1.0


class Worker:
    """Runs tasks in threads. Claims no more than it can start within 5 ms, and gives back what it cannot.

    A run that succeeds frees its slot, and is settled together with the other runs that ended during the
    previous settling call. At most `concurrency` runs, and as many as were prefetched, wait to be settled.

    A lease is extended while its task runs, so it may be shorter than the work. If the process dies, the
    leases expire and the sweep returns the tasks.

    After `max_run_seconds` the worker stops extending the lease of a run, and frees its slot for another
    task. When the lease expires the task returns to its line with its attempt counted, or becomes a dead
    letter after its last attempt. A coroutine is then cancelled, and tried again later. Python cannot stop a
    thread, but its function can check `task.cancelled`: a hanging run continues until it returns, in parallel
    with the next attempt, and cannot settle once its lease has expired. Set timeouts on the runner's own
    calls; the limit is for hangs that they miss. The threads do not keep the process alive.

    An outage of the store does not end the worker, unless it lasts for `give_up_seconds`: the worker claims
    with backoff, and settles ended runs when the store is back. An exception of the runner ends only the
    attempt; an unexpected one is logged with its traceback, so keep secrets out of its text.

    With `transaction=True` a task is held by the lock of its row instead of a lease, and the runner is
    called with the task and the connection of the transaction.

    Examples:
        >>> receipt = queue.put("work", task_id="b")
        >>> report = Worker(queue, lambda task: len(task.payload), idle_exit_seconds=0.1).run()
        >>> queue.get("b").result
        4
    """

    def __init__(
        self,
        queue: BaseQueue | AsyncQueue,
        runner: Runner | TransactionRunner,
        **options: Unpack[WorkerOptions],
    ) -> None:
        """Prepare a worker; `run` starts it.

        Args:
            queue: The queue to claim from; an AsyncQueue stands for the queue that it uses.
            runner: Called with each task; returns a result, or raises Retry, Reject or Busy.
            **options: See `freshq.worker.options.WorkerConfig`.

        Raises:
            ValueError: If an option is wrong, if `queue` is no queue, if the runner is not callable or
                `async def`, if the queue has a codec that the handlers do not have, or if `transaction` is
                set and the queue is not in a SQL database.
        """
        self._queue = blocking_queue(queue)
        self._config = parse_worker_options(options)
        self._end_request = EndRequest()
        self._status = WorkerStatus()
        self._loop: WorkLoop | None = None
        # Where coroutines run; None: on the runner's own loop.
        self._event_loop: asyncio.AbstractEventLoop | None = None
        if self._config.transaction:
            transactions_of(core_of(self._queue).store, "transaction")
        self._runner: Any = checked_runner(runner, transaction=self._config.transaction)
        largest = max((rule.size for rule in self._batch_rules().values()), default=1)
        self._limits = StartLimits(self._queue, self._config, largest)
        self._codec = codec_of(self._queue, self._runner)
        self._processes: AbstractContextManager[object] = nullcontext()
        if self._config.isolate:
            from freshq.worker.isolate import IsolatedRunner  # noqa: PLC0415 - slow to load; most need it not

            self._runner = self._processes = IsolatedRunner(self._runner, self._config, self._queue.admin.now)

    def _batch_rules(self) -> Mapping[str, BatchRule]:
        """Return how tasks share calls, by kind.

        Raises:
            ValueError: If the worker cannot run batches, or other handlers.
        """
        if isinstance(self._runner, CoroutineRunner):
            check_handlers(self._runner, transaction=self._config.transaction)
        rules = batch_rules_of(self._runner)
        if rules and self._config.at_most_once:
            msg = f"at_most_once: not with batch handlers, such as the one of {quoted(min(rules))}; "
            raise ValueError(msg + "register it without batch, or leave out at_most_once")
        return rules

    def __repr__(self) -> str:
        """Return the class and the queue, without secrets."""
        return f"{type(self).__name__}({self._queue!r})"

    def stop(self) -> None:
        """Stop claiming; `run` returns once the running tasks are settled, and immediately from then on.

        Any thread and any signal handler may call it.
        """
        self._end_request.make()

    def stop_at_once(self) -> None:
        """Stop claiming and do not wait: the leases of running tasks are given back, and `run` returns.

        Other workers can take these tasks immediately, while the runs here continue until they return or the
        process ends. So end the process. Finished tasks are settled instead; if the store does not answer,
        `run` waits 5 s for it. Tasks held in transactions return when the process ends.
        """
        self._end_request.at_once = True
        self.stop()

    def status(self) -> WorkerStatus:
        """Return the state and the counts of the worker. Any thread may call it."""
        return self._status if self._loop is None else self._loop.status()

    def run(self, until: Until = None) -> RunReport:
        """Work until stopped. Release the queue's connections at the end; the queue stays open.

        Args:
            until: A condition, checked before each claim, or a time in seconds since the epoch by the
                queue's clock. None: until `stop`. `idle_exit_seconds` also ends it.

        Returns:
            A report. If the store does not answer at the end, it comes up to 2 s after `drain_seconds`; the
            log lists unsettled tasks. The worker also stops when `MAX_OVERRUNNING` runs have exceeded
            `max_run_seconds` and are still running, since only the end of the process ends their threads.

        Raises:
            StoreError: If claims failed for `give_up_seconds`, after waiting for the running tasks;
                immediately if the first claim finds no table, or meets another error that waiting does not
                fix.
        """
        with self._processes:
            return self._run(until)

    def _run(self, until: Until) -> RunReport:
        self._loop = loop = self._new_loop()
        self._end_request.asked_at = time.monotonic() if self._end_request.made else None
        # In a separate thread: a call to a store that does not answer cannot be interrupted.
        work = in_thread(
            "freshq-worker", partial(loop.work, self._end_request.condition(until, self._queue.admin.now))
        )
        work.add_done_callback(lambda _work: self._end_request.told.set())
        try:
            self._await_end(work)
        except BaseException:  # an interrupt of this thread
            self.stop()
            self._await_end(work)
            raise
        finally:
            is_over = work.done()
            if not is_over:
                loop.abandon()
            self._close()
            self._status = replace(loop.status(), state=WorkerState.ENDED)
            self._loop = None
        if is_over:
            work.result()
        return loop.report

    def _await_end(self, work: Future[None]) -> None:
        """Wait until the loop has ended; from the request to end on, only as long as it may drain."""
        request, drain_seconds = self._end_request, self._config.drain_seconds
        while not work.done():
            seconds = GIVE_BACK_SECONDS if request.at_once else drain_seconds
            if request.asked_at is None or seconds is None:
                request.told.wait(None)
            elif (left_seconds := request.asked_at + seconds + END_SECONDS - time.monotonic()) > 0:
                request.told.wait(left_seconds)
            else:
                return

    def _close(self) -> None:
        """Return shared slots and release the queue's connections, if the store answers in time."""
        self._end_request.idle = True

        def close() -> None:
            self._limits.leave()
            self._limits.breaker.share()
            core_of(self._queue).release()

        closed = in_thread("freshq-close", close)
        late = not wait([closed], END_SECONDS).done
        if late or (problem := closed.exception()) is not None:
            why = f"no answer within {END_SECONDS:g} s" if late else problem
            logger.warning("could not close queue %r cleanly: %s", self._queue.name, why)

    def _new_loop(self) -> WorkLoop:
        self._batch_rules()  # handlers may have been registered since
        self._end_request.idle = False
        runner: Any = instrumented(self._runner, self._queue.admin.config.telemetry)
        common = (self._queue, runner, self._config, self._limits, self._end_request)
        if self._config.transaction:
            return TransactionLoop(*common, self._codec)
        return LeaseLoop(*common, self._event_loop, self._codec)

    def serving(self, drain_seconds: float | None = None) -> AbstractAsyncContextManager[Self]:
        """Run the worker alongside an `async with` block, as in the lifespan of a web application.

        Claims and renewals have their own threads. The `async def` functions of `Handlers` run on the
        loop of the block, so that they can share the application's resources.

        At the end of the block the worker drains, as after `stop`. Tasks that still run after
        `drain_seconds`, or when the coroutine of the block is cancelled again, are given back, as by
        `stop_at_once`, and coroutines are cancelled.

        Args:
            drain_seconds: How long to wait for running tasks at the end; None: until they are done.

        Returns:
            A context manager that yields the worker, once its store has answered or 2 s have passed. It
            raises the error that ended the worker, if any (see `run`): before the block if a table is
            missing, else at the end of a block without an error of its own. Such an error is logged when it
            happens, and `status` says that the worker ended.

        Raises:
            ValueError: If the argument is wrong.
        """
        if drain_seconds is not None:
            checked_seconds("drain_seconds", drain_seconds)
        from freshq.worker.serving import served  # noqa: PLC0415 - asyncio is slow to load

        return served(self, self._run_on, drain_seconds)

    def _run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run, with coroutines on a loop that runs in another thread."""
        self._event_loop = loop
        self.run()


class Workers:
    """Several workers in one process, run together: each works its own queue, with its own slots.

    `run`, `stop`, `stop_at_once` and `status` work as in `Worker`.

    Examples:
        >>> from freshq.worker import Workers
        >>> first, second = Queue.memory(name="mail"), Queue.memory(name="quotes")
        >>> workers = [Worker(each, print, idle_exit_seconds=0.1) for each in (first, second)]
        >>> report = Workers(*workers).run()
    """

    def __init__(self, *workers: Worker) -> None:
        """Keep the workers; `run` starts them.

        Args:
            *workers: The workers, at least one.

        Raises:
            ValueError: If there is none.
        """
        if not workers:
            raise ValueError("workers: give at least one")
        self.workers = workers
        requests = [worker._end_request for worker in workers]  # noqa: SLF001 - of the class above
        for request in requests:
            request.peers = requests

    def stop(self) -> None:
        """Stop them all; see `Worker.stop`."""
        for worker in self.workers:
            worker.stop()

    def stop_at_once(self) -> None:
        """Stop all of them immediately; see `Worker.stop_at_once`."""
        for worker in self.workers:
            worker.stop_at_once()

    def status(self) -> WorkerStatus:
        """Return their state and counts together."""
        return together([worker.status() for worker in self.workers])

    def run(self, until: Until = None) -> RunReport:
        """Work until all have ended. If one raises, the others drain first.

        With `idle_exit_seconds`, they end once all of them are idle.

        Args:
            until: As for `Worker.run`.

        Returns:
            The report of all.

        Raises:
            StoreError: As `Worker.run`; the first one.
        """
        started = [partial(copy_context().run, worker.run, until) for worker in self.workers]
        runs = [in_thread("freshq-workers", run) for run in started]
        try:
            for run in as_completed(runs):
                if run.exception() is not None:
                    self.stop()
        except BaseException:  # an interrupt of this thread
            self.stop()
            wait(runs)
            raise
        return merged([run.result() for run in runs])


def load_worker(name: str, advice: str = "") -> Worker | None:
    """Import the worker that a name such as ``app:worker`` refers to; return None if it is not a worker.

    Args:
        name: The module, and the name in it.
        advice: What to do if there is no such module, for the error.

    Raises:
        ValueError: One line that names the wrong part and what to do.
    """
    found = load_object("runner", name, advice, what="function", example="orders.runner:run")
    return found if isinstance(found, Worker) else None


def kinds_of(worker: Worker | Workers) -> list[str] | None:
    """Return the kinds of tasks that workers with a runner serve; None if it accepts any."""
    one = worker.workers[0] if isinstance(worker, Workers) else worker
    runner = one._runner  # noqa: SLF001 - for freshq's own command
    return runner.kinds if isinstance(runner, CoroutineRunner) else None


def made_with(worker: Worker) -> tuple[BaseQueue, WorkerConfig]:
    """Return the queue and the options of a worker."""
    return worker._queue, worker._config  # noqa: SLF001 - for freshq's own command


def go_on_with(worker: Worker, breakers: dict[str, RunBreaker]) -> None:
    """Let a worker go on with the breaker of an earlier worker of its queue, if there was one."""
    limits = worker._limits  # noqa: SLF001 - for the passes of a function
    limits.breaker = breakers.setdefault(worker._queue.name, limits.breaker)  # noqa: SLF001 - as above
