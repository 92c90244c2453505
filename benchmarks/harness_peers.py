"""Run freshq and other queues on PostgreSQL for `benchmarks.harness`, each in its own interpreter.

    python -m benchmarks.harness_peers VERB PEER WHERE NUMBER ...

`install` creates the tables in an empty database and prints the version of the peer; if the peer is not
installed, the program exits with status 3. `fill` puts a number of tasks by a thousand in one call and prints
the seconds. `left` prints how many tasks have not ended.

`work` prints `ready` once it is connected, starts at a line of input, and runs the tasks of a full queue as
`benchmarks.peers` does. `serve` runs tasks in a number of slots, and prints the number, the times of put,
start and end of each run. `offer` puts tasks at a steady rate: after NUMBER, the rate a second and
each task's seconds. The tasks that are due every 10 ms are one call, as in the public harness. It repeats
failed calls until they succeed; then it prints `put`, the number of tasks, and of failures.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers import NOT_INSTALLED, Count, Job, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    Args = Mapping[str, Any]

# With the other fields, about the 256 bytes of the public harness.
TEXT: Final = "x" * 180
MANY: Final = 1000
# Workers find the tasks of killed ones after this time; the defaults are 30 to 300 s.
RESCUE_SECONDS: Final = 6.0
LOOK_SECONDS: Final = 2.0
# The most tasks of a producer's call, and its shortest interval.
MOST_TOGETHER: Final = 128
TOGETHER_SECONDS: Final = 0.01
RETRY_SECONDS: Final = 0.2
# A put that fails for longer ends the program.
PATIENCE_SECONDS: Final = 60.0
CONNECTIONS: Final = 10
# So long that no task expires here.
MAX_AGE_SECONDS: Final = 3600.0
# Jobs of a state that are counted at most.
LISTED: Final = 10_000
NAME: Final = "run"


@dataclass
class Run:
    """The arguments of a task, for peers that want a class.

    Attributes:
        number: Its number.
        put_at: When it was first put, by the machine's monotonic clock.
        seconds: Duration of its run.
        text: A filler.
    """

    number: int
    put_at: float
    seconds: float = 0.0
    text: str = TEXT


class Noted(Job):
    """A run that prints its number, and when it was put, began and ended."""

    def ready(self) -> None:
        """Report that this process is connected, before its first run; watch for the end of the input."""
        say("ready")
        threading.Thread(target=self._await_over, daemon=True).start()

    def _await_over(self) -> None:
        sys.stdin.read()
        self.over.set()

    def began(self, args: Args) -> None:
        """Say nothing yet."""

    def ended(self, args: Args, began: float) -> None:
        """Print the line."""
        say(f"{args['number']} {args['put_at']} {began} {time.monotonic()}")


class Adapter(ABC):
    """A queue in a database.

    Attributes:
        package: Its name in the package registry.
    """

    package: str

    def __init__(self, where: str, option: str) -> None:
        """Choose the database.

        Args:
            where: Its URL.
            option: A variant of the worker.

        Raises:
            ModuleNotFoundError: If the package is not installed.
        """
        self.where, self.option = where, option
        self.module: Any = importlib.import_module(self.package.removesuffix("-pg"))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold its connections."""
        yield

    @abstractmethod
    async def install(self) -> None:
        """Create its tables."""

    @abstractmethod
    async def put_many(self, tasks: Sequence[Args]) -> None:
        """Put tasks in one call."""

    @abstractmethod
    async def work(self, job: Job, slots: int) -> None:
        """Run tasks until the job is over, also those of killed workers."""

    @abstractmethod
    async def left(self) -> int:
        """Return the number of tasks that have not ended."""


class Freshq(Adapter):
    """freshq, with coroutines, or with the option `functions` with functions."""

    package = "freshq"

    def _queue(self) -> Any:
        return self.module.Queue.sql(
            self.where,
            order="fifo",
            max_age_seconds=MAX_AGE_SECONDS,
            max_connections=CONNECTIONS,
            lease_seconds=RESCUE_SECONDS,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open an `AsyncQueue`."""
        async with self.module.AsyncQueue(self._queue()) as self._async_queue:
            yield

    async def install(self) -> None:
        """Create the table."""
        await self._async_queue.create_table()

    async def put_many(self, tasks: Sequence[Args]) -> None:
        """Put tasks."""
        await self._async_queue.put_many([{"payload": args, "kind": NAME} for args in tasks])

    async def work(self, job: Job, slots: int) -> None:
        """Run a `Worker`."""
        handlers = self.module.Handlers()

        async def coroutine(task: Any) -> None:
            await job.arun(task.payload)

        def function(task: Any) -> None:
            job.run(task.payload)

        handlers.on(NAME)(function if self.option == "functions" else coroutine)
        with self._queue() as queue:
            queue.get("none")
            await asyncio.to_thread(job.ready)
            worker = self.module.Worker(queue, handlers, concurrency=slots)
            await asyncio.to_thread(worker.run, job.over.is_set)

    async def left(self) -> int:
        """Count the tasks."""
        stats = await self._async_queue.stats()
        return int(stats.pending + stats.delayed + stats.taken)


class Awa(Adapter):
    """awa, with its queue storage."""

    package = "awa-pg"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open a client."""
        async with self.module.AsyncClient(self.where, CONNECTIONS) as self._client:
            yield

    async def install(self) -> None:
        """Create the tables, and activate the storage that is not the compatible one."""
        await self._client.migrate()
        await self._client.install_queue_storage()

    async def put_many(self, tasks: Sequence[Args]) -> None:
        """Insert jobs by COPY."""
        await self._client.enqueue_many_copy([Run(**args) for args in tasks])

    async def work(self, job: Job, slots: int) -> None:
        """Run its runtime."""

        @self._client.task(Run)  # type: ignore[untyped-decorator]
        async def run(given: Any) -> None:
            await job.arun(vars(given.args))

        await asyncio.to_thread(job.ready)
        look_ms = int(1000 * LOOK_SECONDS)
        await self._client.start(
            [("default", slots)],
            heartbeat_interval_ms=look_ms,
            heartbeat_rescue_interval_ms=look_ms,
            leader_election_interval_ms=look_ms,
            heartbeat_staleness_ms=int(1000 * RESCUE_SECONDS),
        )
        await asyncio.to_thread(job.over.wait)
        await self._client.shutdown(int(1000 * RESCUE_SECONDS))

    async def left(self) -> int:
        """List the jobs: the statistics take minutes beside 10,000 that have ended."""
        states = ("available", "running", "retryable", "scheduled")
        jobs = [await self._client.list_jobs(state=state, limit=LISTED) for state in states]
        return sum(map(len, jobs))


class Oban(Adapter):
    """oban, which listens, and claims and settles several jobs together."""

    package = "oban"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open a pool."""
        self._pool = await self.module.Oban.create_pool(self.where, min_size=2, max_size=CONNECTIONS)
        self._client = self.module.Oban(pool=self._pool)
        self._job: Job | None = None
        adapter = self

        class Running:
            async def process(self, given: Any) -> None:
                assert adapter._job
                await adapter._job.arun(given.args)

        self._run = self.module.worker(queue="default")(Running)
        yield
        await self._pool.close()

    async def install(self) -> None:
        """Create the tables."""
        await importlib.import_module("oban.schema").install(self._pool)

    async def put_many(self, tasks: Sequence[Args]) -> None:
        """Enqueue jobs."""
        await self._client.enqueue_many([self._run.new(dict(args)) for args in tasks])

    async def work(self, job: Job, slots: int) -> None:
        """Run an instance with one queue."""
        self._job = job
        lifeline = {"interval": LOOK_SECONDS, "rescue_after": RESCUE_SECONDS}
        await asyncio.to_thread(job.ready)
        async with self.module.Oban(
            pool=self._pool, queues={"default": slots}, name="worker", lifeline=lifeline
        ):
            await asyncio.to_thread(job.over.wait)

    async def left(self) -> int:
        """Count the rows."""
        query = "SELECT count(*) FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled')"
        async with self._pool.connection() as connection:
            return int((await (await connection.execute(query)).fetchone())[0])


class Procrastinate(Adapter):
    """procrastinate, which listens."""

    package = "procrastinate"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open an app."""
        connector = self.module.PsycopgConnector(conninfo=self.where, max_size=CONNECTIONS)
        self._app = self.module.App(connector=connector)
        self._job: Job | None = None

        @self._app.task(name=NAME)  # type: ignore[untyped-decorator]
        async def run(**args: Any) -> None:
            assert self._job
            await self._job.arun(args)

        self._run = run
        async with self._app.open_async():
            yield

    async def install(self) -> None:
        """Create the tables."""
        await self._app.schema_manager.apply_schema_async()

    async def put_many(self, tasks: Sequence[Args]) -> None:
        """Defer jobs."""
        await self._run.batch_defer_async(*tasks)

    async def work(self, job: Job, slots: int) -> None:
        """Run a worker, and return the jobs of others that are silent, which is left to the user."""
        self._job = job
        await asyncio.to_thread(job.ready)
        working = [asyncio.create_task(each) for each in (self._work(slots), self._rescue())]
        await asyncio.to_thread(job.over.wait)
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    async def _work(self, slots: int) -> None:
        """Run workers, because one ends with its connection: a supervisor would start the next one."""
        while True:
            try:
                await self._app.run_worker_async(
                    concurrency=slots,
                    install_signal_handlers=False,
                    update_heartbeat_interval=LOOK_SECONDS,
                    stalled_worker_timeout=RESCUE_SECONDS,
                )
            except self.module.exceptions.ProcrastinateException as failed:
                print(f"worker: {failed}", file=sys.stderr)
            await asyncio.sleep(RETRY_SECONDS)

    async def _rescue(self) -> None:
        manager = self._app.job_manager
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for stalled in await manager.get_stalled_jobs(seconds_since_heartbeat=RESCUE_SECONDS):
                    await manager.retry_job(stalled)
            except self.module.exceptions.ConnectorException as failed:
                # The next look is soon.
                print(failed, file=sys.stderr)

    async def left(self) -> int:
        """Count the rows."""
        query = "SELECT count(*) AS count FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        return int((await self._app.connector.execute_query_one_async(query))["count"])


ADAPTERS: Final[dict[str, type[Adapter]]] = {
    "freshq": Freshq, "awa": Awa, "oban": Oban, "procrastinate": Procrastinate,
}  # fmt: skip


def task(number: int, seconds: float = 0.0) -> dict[str, Any]:
    """Return the arguments of a task that is put now."""
    return vars(Run(number, time.monotonic(), seconds))


async def fill(adapter: Adapter, tasks: int) -> float:
    """Put tasks; return the seconds that the calls took."""
    await adapter.put_many([task(0)])  # connects
    began = time.monotonic()
    for first in range(1, tasks, MANY):
        await adapter.put_many([task(number) for number in range(first, min(tasks, first + MANY))])
    return time.monotonic() - began


async def put_until_stored(adapter: Adapter, tasks: Sequence[Args]) -> int:
    """Put tasks until they are stored; return how often that failed."""
    until = time.monotonic() + PATIENCE_SECONDS
    failures = 0
    while True:
        try:
            await adapter.put_many(tasks)
        except Exception as failed:
            # Each peer has errors of its own for a lost connection.
            if time.monotonic() > until:
                raise
            failures += 1
            print(f"put: {failed!r}", file=sys.stderr)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return failures


async def offer(adapter: Adapter, tasks: int, rate_per_second: float, seconds: float) -> None:
    """Put tasks at a steady rate, from a line of input on: in each interval the due ones in one call."""
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    began, put, failures = time.monotonic(), 0, 0
    while put < tasks:
        now = time.monotonic()
        due = min(tasks, put + MOST_TOGETHER, int((now - began) * rate_per_second))
        if due > put:
            failures += await put_until_stored(adapter, [task(number, seconds) for number in range(put, due)])
            put = due
        await asyncio.sleep(now + TOGETHER_SECONDS - time.monotonic())
    say(f"put {tasks} {failures}")


async def run(verb: str, adapter: Adapter, number: int, others: Sequence[float]) -> None:
    """Do the work of the module with an open adapter."""
    async with adapter.opened():
        if verb == "install":
            await adapter.install()
            say(version(adapter.package))
        elif verb == "fill":
            say(f"{await fill(adapter, number)}")
        elif verb == "offer":
            await offer(adapter, number, *others)
        elif verb == "left":
            say(f"{await adapter.left()}")
        else:
            job = Count() if verb == "work" else Noted()
            if isinstance(job, Count):
                threading.Thread(target=job.tell, daemon=True).start()
            await adapter.work(job, number)
            if isinstance(job, Count):
                say(json.dumps(job.span()))


def main(verb: str, named: str, where: str, number: int, others: Sequence[float]) -> int:
    """Do the work of the module; return the exit status.

    Args:
        verb: Such as work.
        named: Name of the peer, and after an @ an option.
        where: The URL of its database.
        number: Tasks, or slots.
        others: Further numbers.
    """
    name, _, option = named.partition("@")
    try:
        adapter = ADAPTERS[name](where, option)
    except ModuleNotFoundError as missing:
        print(missing, file=sys.stderr)
        return NOT_INSTALLED
    asyncio.run(run(verb, adapter, number, others))
    return 0


if __name__ == "__main__":
    # A peer's worker may have threads that do not end.
    os._exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), [*map(float, sys.argv[5:])]))
