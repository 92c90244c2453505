"""Run workers and producers of other queues, in an interpreter in which they are installed.

    python peers.py VERB PEER WHERE NUMBER

`fill` empties a queue, fills it with tasks and prints the version of the peer; if the peer is not installed,
the program exits with status 3. `work` prints `ready` once it is connected, starts at a line of input, runs
an empty handler for each task in a number of slots and prints the number of runs; at the end of its input, it
prints the starts of the first and the last run, and the processor time of this process between them.

`idle` waits for tasks and prints for each the milliseconds since its put began. `put` puts single tasks for
it, at random intervals. `serve` runs tasks that sleep, and prints the number, start and end of each. `offer`
puts the tasks whose numbers it reads, and at the end prints how many tasks wait. `idle` and `serve` print
`ready` once they wait, and work until the end of their input.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    Args = Mapping[str, Any]
    Put = Callable[[Args], Awaitable[object]]
    Use = Callable[[Put], Coroutine[Any, Any, None]]

PAYLOAD: Final = {"text": "x" * 1000}
BATCH: Final = 500
NOT_INSTALLED: Final = 3
TOLD_EVERY_SECONDS: Final = 0.02
# By then a worker has reached its first wait.
SETTLED_SECONDS: Final = 1.0
SLOTS: Final = 8
# If shorter, a worker might still be busy at the next put.
PAUSE_SECONDS: Final = (0.05, 0.25)
TASK_SECONDS: Final = 0.05
# The values of tasks, the dearest first, for queues that have priorities.
VALUES: Final = (10.0, 4.0, 1.0)
# Poll interval of workers that cannot listen. The defaults are 0.1 to 10 s (huey) and 1 s (Celery).
LOOK_SECONDS: Final = 0.02


def say(line: str) -> None:
    """Print a line in one call, because several threads do."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def rank(args: Args) -> int:
    """Return the place of a task's value among the values: 0 for the dearest, and without a value."""
    return VALUES.index(args["value"]) if "value" in args else 0


def pauses(seed: object) -> random.Random:
    """Return the source of pauses between puts."""
    return random.Random(str(seed))


class Job:
    """The worker's task function: it does nothing but report how long after its put the task began.

    Attributes:
        seconds: Duration of the run's sleep.
        over: Set when the worker should stop.
    """

    seconds = 0.0

    def __init__(self) -> None:
        self.over = threading.Event()

    def ready(self) -> None:
        """Report, once the worker waits for tasks, that it does; watch for the end of the input."""
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        time.sleep(SETTLED_SECONDS)
        say("ready")
        sys.stdin.read()
        self.over.set()

    def began(self, args: Args) -> None:
        """Note that a run began."""
        say(f"{1000 * (time.monotonic() - args['put_at']):.2f}")

    def ended(self, args: Args, began: float) -> None:
        """Note the end of a run, given its start by the machine's monotonic clock."""

    def run(self, args: Args) -> None:
        """Run a task in a thread."""
        began = time.monotonic()
        self.began(args)
        if seconds := args.get("seconds", self.seconds):
            time.sleep(seconds)
        self.ended(args, began)

    async def arun(self, args: Args) -> None:
        """Run a task in an event loop."""
        began = time.monotonic()
        self.began(args)
        if seconds := args.get("seconds", self.seconds):
            await asyncio.sleep(seconds)
        self.ended(args, began)


class Sleep(Job):
    """A run that sleeps and prints when it began and ended."""

    seconds = TASK_SECONDS

    def began(self, args: Args) -> None:
        """Say nothing yet."""

    def ended(self, args: Args, began: float) -> None:
        """Print the number, the start and the end."""
        say(f"{args['number']} {began} {time.monotonic()}")


class Span(NamedTuple):
    """The working time of a process.

    Attributes:
        first: Start of its first run, by the machine's monotonic clock.
        last: Start of its last run, or the last settlement.
        processor_seconds: Processor time of the process between them.
    """

    first: float
    last: float
    processor_seconds: float


class Count(Job):
    """An empty run; counts the runs of this process and notes the starts of the first and the last."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._lock = threading.Lock()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def ready(self) -> None:
        """Report that this process is connected; wait until all are."""
        say("ready")
        sys.stdin.readline()
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        sys.stdin.read()
        self.over.set()

    def began(self, args: Args) -> None:  # noqa: ARG002 - all are the same
        """Count one run."""
        with self._lock:
            self._last = time.monotonic(), time.process_time()
            self._first = self._first or self._last
            self._count += 1

    def tell(self) -> None:
        """Print the count whenever it has changed."""
        told = 0
        while not self.over.wait(TOLD_EVERY_SECONDS):
            if self._count != told:
                told = self._count
                say(f"{told}")

    def span(self) -> Span | None:
        """Return the span of this process; None if it ran nothing."""
        if self._first is None:
            return None
        return Span(self._first[0], self._last[0], self._last[1] - self._first[1])


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue.

    Attributes:
        fill: Leaves only a number of new tasks in the queue.
        work: Runs tasks in a number of slots until the job is over.
        offer: Opens the queue and calls a function with a function that puts a task; returns how many tasks
            wait at the end.
    """

    fill: Callable[[int], None]
    work: Callable[[int], None]
    offer: Callable[[Use], int]


def _counted(where: str, query: str) -> int:
    with importlib.import_module("psycopg").connect(where) as connection:
        return int(connection.execute(query).fetchone()[0])


def _of_coroutines(
    fill: Callable[[int], Coroutine[Any, Any, None]],
    work: Callable[[int], Coroutine[Any, Any, None]],
    offer: Callable[[Use], Coroutine[Any, Any, int]],
) -> Peer:
    return Peer(
        lambda tasks: asyncio.run(fill(tasks)),
        lambda slots: asyncio.run(work(slots)),
        lambda use: asyncio.run(offer(use)),
    )


def freshq(where: str, job: Job, option: str) -> Peer:
    """Serve with freshq itself; the option is an order or `levels`, and after a `/` a max age in seconds."""
    package = importlib.import_module("freshq")
    order, _, max_age_seconds = option.partition("/")
    has_levels = order == "levels"

    def queue() -> Any:
        return package.Queue.sql(
            where, order="lifo" if has_levels else order, max_age_seconds=float(max_age_seconds or 1)
        )

    def worth(args: Args) -> dict[str, Any]:
        if has_levels:
            return {"priority": len(VALUES) - 1 - rank(args)}
        return {"value": args["value"]} if "value" in args else {}

    def work(slots: int) -> None:
        with queue() as opened:
            opened.get("none")
            job.ready()
            package.Worker(opened, lambda task: job.run(task.payload), concurrency=slots).run(
                until=job.over.is_set
            )

    def offer(use: Use) -> int:
        with queue() as opened:
            asyncio.run(use(lambda args: asyncio.to_thread(opened.put, args, **worth(args))))
            return int(opened.stats().pending)

    return Peer(lambda _tasks: queue().create_table(), work, offer)


def oban(where: str, job: Job, _option: str) -> Peer:
    """Serve with oban, which listens, and claims and settles several jobs together."""
    package, schema = importlib.import_module("oban"), importlib.import_module("oban.schema")

    class _Run:
        async def process(self, given: Any) -> None:
            await job.arun(given.args)

    run: Any = package.worker(queue="default")(_Run)

    async def pool() -> Any:
        return await package.Oban.create_pool(where, min_size=2, max_size=10)

    async def fill(tasks: int) -> None:
        opened = await pool()
        await schema.uninstall(opened)
        await schema.install(opened)
        client = package.Oban(pool=opened)
        for start in range(0, tasks, BATCH):
            await client.enqueue_many([run.new(PAYLOAD) for _ in range(start, min(tasks, start + BATCH))])
        await opened.close()

    async def work(slots: int) -> None:
        opened = await pool()
        job.ready()
        async with package.Oban(pool=opened, queues={"default": slots}):
            await asyncio.to_thread(job.over.wait)
        await opened.close()

    async def offer(use: Use) -> int:
        opened = await pool()
        client = package.Oban(pool=opened)
        await use(lambda args: client.enqueue(run.new(dict(args), priority=rank(args))))
        await opened.close()
        return _counted(where, "SELECT count(*) FROM oban_jobs WHERE state = 'available'")

    return _of_coroutines(fill, work, offer)


def procrastinate(where: str, job: Job, _option: str) -> Peer:
    """Serve with procrastinate, which listens, unless it works a full queue off."""
    package = importlib.import_module("procrastinate")
    app = package.App(connector=package.PsycopgConnector(conninfo=where))
    waits = not isinstance(job, Count)

    @app.task(name="run")  # type: ignore[untyped-decorator]
    async def run(**args: Any) -> None:
        await job.arun(args)

    async def fill(tasks: int) -> None:
        async with app.open_async():
            await app.connector.execute_query_async("DROP SCHEMA public CASCADE")
            await app.connector.execute_query_async("CREATE SCHEMA public")
            await app.schema_manager.apply_schema_async()
            if tasks:
                await run.batch_defer_async(*[PAYLOAD for _ in range(tasks)])

    async def work(slots: int) -> None:
        async with app.open_async():
            job.ready()
            working = asyncio.create_task(
                app.run_worker_async(
                    concurrency=slots, wait=waits, listen_notify=waits, install_signal_handlers=False
                )
            )
            if waits:
                await asyncio.to_thread(job.over.wait)
                working.cancel()
            else:
                await working

    async def offer(use: Use) -> int:
        async with app.open_async():
            await use(lambda args: run.configure(priority=-rank(args)).defer_async(**args))
        return _counted(where, "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'")

    return _of_coroutines(fill, work, offer)


def celery(where: str, job: Job, expires: str) -> Peer:
    """Serve with Celery, with threads and its SQLAlchemy transport."""
    package = importlib.import_module("celery")
    parts = importlib.import_module("psycopg.conninfo").conninfo_to_dict(where)
    url = "sqla+postgresql+psycopg://{user}@{host}:{port}/{dbname}".format(**parts)
    app = package.Celery(broker=url)
    app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)
    if not isinstance(job, Count):
        # An option of the broker would do, but this transport passes all of these on to SQLAlchemy.
        importlib.import_module("kombu.transport.sqlalchemy").Transport.polling_interval = LOOK_SECONDS
    options = {"expires": float(expires)} if expires else {}

    @app.task(name="run")  # type: ignore[untyped-decorator]
    def run(args: Args) -> None:
        job.run(args)

    def fill(tasks: int) -> None:
        with app.connection_for_write() as connection:
            connection.default_channel.queue_declare("celery")
            connection.default_channel.queue_purge("celery")
        for _ in range(tasks):
            run.delay(PAYLOAD)

    def work(slots: int) -> None:
        worker = app.Worker(
            pool="threads", concurrency=slots, loglevel="ERROR", without_gossip=True, quiet=True,
            without_mingle=True, without_heartbeat=True,
        )  # fmt: skip
        job.ready()
        threading.Thread(target=worker.start, daemon=True).start()
        job.over.wait()

    def offer(use: Use) -> int:
        asyncio.run(use(lambda args: asyncio.to_thread(run.apply_async, (dict(args),), **options)))
        return _counted(where, "SELECT count(*) FROM kombu_message WHERE visible")

    return Peer(fill, work, offer)


def sqlite_huey(file: str, **options: Any) -> Any:
    """Return a huey that does not wait for the disk; its own `fsync=False` would be less durable."""
    package, storage = importlib.import_module("huey"), importlib.import_module("huey.storage")

    class _Storage(storage.SqliteStorage):  # type: ignore[misc,name-defined]
        def _create_connection(self) -> Any:
            connection = super()._create_connection()
            connection.execute("PRAGMA synchronous=NORMAL")
            return connection

    return package.Huey(storage_class=_Storage, filename=file, **options)


def huey(where: str, job: Job, expires: str) -> Peer:
    """Serve with huey's consumer with threads, on SQLite."""
    queue = sqlite_huey(where, results=False)
    delays = {} if isinstance(job, Count) else {"initial_delay": LOOK_SECONDS, "max_delay": LOOK_SECONDS}

    @queue.task(**({"expires": float(expires)} if expires else {}))  # type: ignore[untyped-decorator]
    def run(args: Args) -> None:
        job.run(args)

    def fill(tasks: int) -> None:
        for _ in range(tasks):
            run(PAYLOAD)

    def work(slots: int) -> None:
        consumer = queue.create_consumer(workers=slots, periodic=False, **delays)
        job.ready()
        consumer.start()
        job.over.wait()
        consumer.stop()

    def offer(use: Use) -> int:
        asyncio.run(use(lambda args: asyncio.to_thread(run, dict(args), priority=-rank(args))))
        return int(queue.pending_count())

    return Peer(fill, work, offer)


PEERS: Final[dict[str, Callable[[str, Job, str], Peer]]] = {
    each.__name__: each for each in (oban, procrastinate, celery, huey, freshq)
}
JOBS: Final = {"work": Count, "serve": Sleep}


def putting(tasks: int) -> Use:
    """Return a function that puts single tasks at random intervals."""

    async def use(put: Put) -> None:
        source = pauses(tasks)
        for _ in range(tasks):
            await asyncio.sleep(source.uniform(*PAUSE_SECONDS))
            await put({"put_at": time.monotonic()})

    return use


async def offering(put: Put) -> None:
    """Put each task as soon as its line arrives: its number, and perhaps its value and its seconds."""
    say("ready")
    puts = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        number, *of_task = line.split()
        args = dict(zip(("value", "seconds"), map(float, of_task), strict=False))
        puts.append(asyncio.ensure_future(put({"number": int(number), **args})))
    await asyncio.gather(*puts)


def main(verb: str, named: str, where: str, number: int) -> int:
    """Do the work of the module; return the exit status.

    Args:
        verb: Such as work.
        named: Name of the peer, and after an @ an option: when its tasks expire, or the order.
        where: The address of its database.
        number: Tasks, or slots.
    """
    name, _, option = named.partition("@")
    job = JOBS.get(verb, Job)()
    try:
        peer = PEERS[name](where, job, option)
    except ModuleNotFoundError as missing:
        print(missing, file=sys.stderr)
        return NOT_INSTALLED
    if verb == "fill":
        peer.fill(number)
        say(version(name))
    elif verb == "put":
        peer.offer(putting(number))
    elif verb == "offer":
        say(f"left {peer.offer(offering)}")
    else:
        if isinstance(job, Count):
            threading.Thread(target=job.tell, daemon=True).start()
        peer.work(number)
        job.over.wait()
        if isinstance(job, Count):
            say(json.dumps(job.span()))
    return 0


if __name__ == "__main__":
    # A peer's worker may have threads that do not end.
    os._exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
