"""Throughput of a Worker on SQL, on DynamoDB at a distance, and of the handlers of one event loop.

On SQL it is in turns with claims of ten by hand and the workers of other queues.

Handlers are empty and payloads have 1 KB. Each contender is one process, or two with the same number of slots
each. A rate counts from the first run (by hand: the first claim) to the last; freshq's until all tasks are
done. `--peers` names an interpreter in which other queues are installed (oban needs Python 3.12 or newer);
the page names the queues that it lacks.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from local.faults import Fault, Proxy, client_at, refused
from local.servers import HOST, DynamoDBLocal, Postgres, create_without_stream
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import CONTEXT, LONGEST_SECONDS, in_background, in_processes, in_turns
from benchmarks.figures import PAYLOAD as SMALL_PAYLOAD
from benchmarks.library_pages import FILES, HAND, WORKER
from benchmarks.peers import NOT_INSTALLED, PAYLOAD, PEERS, Span
from benchmarks.sql import fill
from freshq import AsyncQueue, Handlers, Queue, Settlement, Worker
from freshq.worker.report import LoggingObserver, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableSequence
    from contextlib import AbstractAsyncContextManager

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Claim, Task

    Put = Callable[[], Awaitable[object]]
    Sleep = Callable[[], Awaitable[None]]
    Opened = Callable[[Postgres, Sleep | None], AbstractAsyncContextManager[Put]]

BY_HAND: Final = 10
CONCURRENCY: Final = (1, 8, 32, 256)
# For each process: at least about a second of work at each contender's own speed.
WORKER_TASKS: Final = {1: 8000, 8: 8000, 32: 10_000, 256: 12_000}
TASKS: Final = {
    HAND: 8000, "oban": 3000, "procrastinate": 700, "celery": 600, "huey": 2500,
}  # fmt: skip
PEERS_ON: Final = {"postgresql": ("oban", "procrastinate", "celery"), "sqlite": ("huey",)}
PROGRAM: Final = str(Path(__file__).with_name("peers.py"))
POLL_SECONDS: Final = 0.02
COUNT_SECONDS: Final = 0.05
CONNECTIONS: Final = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"


class Watch(LoggingObserver):
    """Notes when the first run of a task began, and each success, by wall and processor time."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None
        self.successes: list[tuple[float, float]] = []

    def run(self, _task: Task) -> None:
        """Note the first run."""
        if self.began is None:
            self.began = time.monotonic(), time.process_time()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Note a success. A task that a busy worker gave back is not done: it will be claimed again."""
        super().settled(claim, outcome, run_seconds, error)
        if outcome is Outcome.SUCCEEDED:
            self.successes.append((time.monotonic(), time.process_time()))

    def span(self) -> Span | None:
        """Return the span from the first run to the last success; None if nothing succeeded."""
        if self.began is None or not self.successes:
            return None
        ended, processor = self.successes[-1]
        return Span(self.began[0], ended, processor - self.began[1])


def opened(url: str) -> Queue:
    """Return a queue; on SQLite it does not wait for the disk, like every contender there."""
    return Queue.sql(url, durable=not url.startswith("sqlite"))


def together(contender: str, url: str, tasks: int, concurrency: int, processes: int) -> list[Span]:
    """Fill a queue and work it off in a number of processes; return the span of each that completed any."""
    fill(url, tasks, PAYLOAD, durable=not url.startswith("sqlite"))
    succeeded = CONTEXT.RawArray("q", processes)
    work = {HAND: _by_hand, WORKER: _by_worker}[contender]
    jobs = [(url, work, succeeded, number, tasks, concurrency) for number in range(processes)]
    return [Span(*each) for each in in_processes(_process, jobs) if each]


def _process(ready: Callable[[], object], url: str, work: Callable[..., Span | None], *job: Any) -> Any:
    """Work in a process that logs no task."""
    logging.disable(logging.WARNING)
    queue = opened(url)
    queue.get("none")  # connects
    span = work(queue, ready, *job)
    queue.close()
    return span and tuple(span)


def _by_hand(queue: Queue, ready: Callable[[], object], *_job: object) -> Span | None:
    """Claim and complete ten tasks at a time, in one thread, until none is left."""
    ready()
    claims = queue.claim(BY_HAND)
    ended = began = (time.monotonic(), time.process_time())
    while claims:
        queue.settle_many([Settlement.complete(claim) for claim in claims])
        ended = (time.monotonic(), time.process_time())
        claims = queue.claim(BY_HAND)
    return Span(began[0], ended[0], ended[1] - began[1]) if ended != began else None


def _by_worker(
    queue: Queue,
    ready: Callable[[], object],
    succeeded: MutableSequence[int],
    number: int,
    tasks: int,
    concurrency: int,
) -> Span | None:
    """Run a worker until the processes together have completed all tasks.

    Args:
        queue: The queue.
        ready: Waits until every process is connected.
        succeeded: Successes of each process, which writes only its own number.
        number: This process.
        tasks: Tasks of all processes.
        concurrency: Slots.
    """
    watch = Watch()

    def all_succeeded() -> bool:
        succeeded[number] = len(watch.successes)
        return sum(succeeded) >= tasks

    worker = Worker(queue, watch.run, concurrency=concurrency, observer=watch)
    ready()
    worker.run(until=all_succeeded)
    return watch.span()


def fill_peer(python: str, peer: str, where: str, tasks: int) -> str | None:
    """Fill the queue of a peer and return its version; None if it is not installed."""
    done = subprocess.run(
        [python, PROGRAM, "fill", peer, where, str(tasks)],
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if done.returncode == NOT_INSTALLED:
        return None
    if done.returncode != 0:
        msg = f"{peer}: {done.stderr.strip().splitlines()[-1]}"
        raise RuntimeError(msg)
    return done.stdout.split()[-1]


class PeerProcess:
    """A process of a peer, whose lines `hear` takes in a thread."""

    # Arguments of the interpreter.
    program: tuple[str, ...] = (PROGRAM,)

    def __init__(self, python: str, verb: str, peer: str, where: str, *numbers: float) -> None:
        """Start it with the arguments of its program, and wait until it is ready.

        Raises:
            RuntimeError: If it does not start.
        """
        command = [python, *self.program, verb, peer, where, *map(str, numbers)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        if self._output.readline() != "ready\n":
            msg = f"{peer} did not start"
            raise RuntimeError(msg)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self.hear(line)

    def hear(self, line: str) -> None:
        """Take a line."""
        raise NotImplementedError

    def tell(self, line: object) -> None:
        """Send it a line."""
        self._input.write(f"{line}\n")
        self._input.flush()

    def end(self) -> None:
        """Let it exit."""
        self._input.close()
        self._process.wait(LONGEST_SECONDS)
        self._reader.join()
        self._output.close()


class Working(PeerProcess):
    """A worker that counts its runs, and at its end has the span of its work; None if it ran nothing."""

    runs = 0
    span: Span | None = None

    @override
    def hear(self, line: str) -> None:
        if line[0].isdigit():
            self.runs = int(line)
        elif found := json.loads(line):
            self.span = Span(*found)


def of_peer(python: str, peer: str, where: str, tasks: int, slots: tuple[int, int]) -> list[Span]:
    """Work off a filled queue of a peer; return the span of each process.

    Args:
        python: The interpreter in which it is installed.
        peer: Its name.
        where: Its address.
        tasks: Number of tasks.
        slots: Slots of each process, and the number of processes.

    Raises:
        TimeoutError: If it does not run them all.
    """
    concurrency, processes = slots
    running = [Working(python, "work", peer, where, concurrency) for _ in range(processes)]
    for process in running:
        process.tell("go")
    deadline = time.monotonic() + LONGEST_SECONDS
    while (runs := sum(process.runs for process in running)) < tasks and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for process in running:
        process.end()
    if runs < tasks:
        msg = f"{peer} ran {runs} of {tasks} tasks in {LONGEST_SECONDS} s"
        raise TimeoutError(msg)
    return [process.span for process in running if process.span]


class Place:
    """A database in which contenders are measured.

    Attributes:
        name: Its name in the results.
        missing: Peers that are not installed.
        versions: Versions of the peers that are.
    """

    def __init__(self, url: str, python: str, conninfo: str = "") -> None:
        """Measure nothing yet.

        Args:
            url: The database; empty for new files of SQLite.
            python: An interpreter with peers.
            conninfo: The database, for libpq.
        """
        self._url, self._python, self._conninfo = url, python, conninfo
        self.name = "postgresql" if conninfo else "sqlite"
        self.missing: set[str] = set()
        self.versions: dict[str, str] = {}

    def contenders(self, processes: int) -> dict[tuple[str, str, str], Callable[[], dict[str, float] | None]]:
        """Return the measurements of one round, by store, slots and contender."""
        return {
            (self.name, str(slots), name): partial(self._measure, name, slots, processes)
            for slots, name in product(CONCURRENCY, (HAND, WORKER, *PEERS_ON[self.name]))
        }

    def _measure(self, contender: str, concurrency: int, processes: int) -> dict[str, float] | None:
        """Measure a contender once; return None if it is not installed."""
        tasks = TASKS.get(contender, WORKER_TASKS[concurrency]) * processes
        with self._counting() as connections:
            spans = self._spans(contender, tasks, concurrency, processes)
        if not spans:
            return None
        seconds = max(span.last for span in spans) - min(span.first for span in spans)
        processor_seconds = sum(span.processor_seconds for span in spans)
        return {
            "tasks": tasks,
            "tasks_per_second": round(tasks / seconds, 1),
            "processor_us_per_task": round(1e6 * processor_seconds / tasks, 1),
        } | ({"connections": max(connections)} if connections else {})

    @contextmanager
    def _counting(self) -> Iterator[list[int]]:
        """Count the connections to a server repeatedly; yield the counts."""
        counts: list[int] = []
        if not self._conninfo:
            yield counts
            return
        over = threading.Event()

        def count() -> None:
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                while not over.wait(COUNT_SECONDS):
                    row = connection.execute(CONNECTIONS).fetchone()
                    counts.append(row[0] if row else 0)

        counting = threading.Thread(target=count)
        counting.start()
        try:
            yield counts
        finally:
            over.set()
            counting.join()

    def _spans(self, contender: str, tasks: int, concurrency: int, processes: int) -> list[Span]:
        with tempfile.TemporaryDirectory() as folder:
            if contender not in PEERS:
                url = self._url or f"sqlite:///{folder}/freshq.db"
                return together(contender, url, tasks, concurrency, processes)
            where = self._conninfo or f"{folder}/{contender}.db"
            found = None if contender in self.missing else fill_peer(self._python, contender, where, tasks)
            if found is None:
                self.missing.add(contender)
                return []
            self.versions[contender] = found
            return of_peer(self._python, contender, where, tasks, (concurrency, processes))


def conninfo(server: Postgres, database: str = "postgres") -> str:
    """Return the address of a database for libpq."""
    return f"host={HOST} port={server.port} user=freshq dbname={database}"


def new_database(server: Postgres, name: str) -> str:
    """Create a database; return its address for libpq."""
    with psycopg.connect(conninfo(server), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return conninfo(server, name)


def measured(rounds: int, peers: str, processes: int) -> Mapping[str, Any]:
    """Measure all contenders with a number of processes, in turns."""
    shown = subprocess.run([peers, "--version"], capture_output=True, text=True, check=True)
    with Postgres(durable=True) as server:
        places = [Place("", peers), Place(server.url, peers, conninfo(server))]
        contenders = {key: each for place in places for key, each in place.contenders(processes).items()}
        found = in_turns(contenders, rounds)
    report: dict[str, Any] = {place.name: {} for place in places}
    for (store, slots, name), results in found.items():
        if any(results):
            report[store].setdefault(slots, {})[name] = results
    return {
        "rounds": rounds,
        "peers_python": shown.stdout.split()[-1],
        "missing": sorted(set.union(*(place.missing for place in places))),
        "versions": {name: each for place in places for name, each in place.versions.items()},
    } | report


def main(rounds: int = 4, peers: str = sys.executable, processes: str = "1,2") -> None:
    """Measure with one process and with two."""
    for number in figures.numbers(processes):
        figures.write(FILES[number], measured(rounds, peers, number))


FAR_SLOTS: Final = 25
TOGETHER: Final = "25 writes a call"
ALONE: Final = "one write a call"
# If fewer, a call of a worker might wait for a connection.
FAR_CONNECTIONS: Final = 60
TABLE: Final = "distance"
# Figures in the file: tasks a second by delay, and the processor time of a task.
RATE: Final = "delays_ms"
WORKER_TIME: Final = "worker_processor_ms"
SERVER_TIME: Final = "server_processor_ms"
FIGURES: Final = (RATE, WORKER_TIME, SERVER_TIME)


class Far(NamedTuple):
    """A server with a table, and a client whose calls are delayed."""

    server: DynamoDBLocal
    client: DynamoDBClient


def measured_once(far: Far, tasks: int) -> dict[str, float]:
    """Run tasks in one worker; return the tasks a second, and both sides' processor time per task."""
    queue = Queue.dynamodb(TABLE, far.client)
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    ran: list[tuple[float, float, float]] = []

    def now() -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), processor_seconds(far.server.process_id)

    def run(_task: Task) -> None:
        ran.append(now() if not ran else ran[0])

    worker = Worker(queue, run, concurrency=FAR_SLOTS)
    report = worker.run(until=lambda: len(ran) >= tasks)
    seconds, own, of_server = (end - start for end, start in zip(now(), ran[0], strict=True))
    if report.outcomes[Outcome.SUCCEEDED] != tasks:
        msg = f"{tasks} tasks were put, but the worker reports {report.outcomes}"
        raise RuntimeError(msg)
    return {
        RATE: round(tasks / seconds, 1),
        WORKER_TIME: round(1000 * own / tasks, 2),
        SERVER_TIME: round(1000 * of_server / tasks, 2),
    }


def processor_seconds(process_id: int) -> float:
    """Return the processor time of a process: the fields utime and stime of proc(5)."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def far_away(delay_seconds: float) -> Iterator[Far]:
    """Start a server with a table whose answers are delayed."""
    with DynamoDBLocal() as server, in_background(_delay, server.port, delay_seconds) as port:
        client = client_at(f"http://127.0.0.1:{port}", connections=FAR_CONNECTIONS)
        create_without_stream(client, TABLE)
        yield Far(server, client)
        client.close()


def _delay(port: int, delay_seconds: float, ready: Any, over: Any) -> None:
    """Delay the answers of a server, in this process."""
    with Proxy(port) as proxy:
        proxy.delay_seconds, proxy.fault = delay_seconds, Fault.DELAY
        ready.put(proxy.port)
        over.wait()


def distance(delays_ms: str = "0,5,20", tasks: int = 500, rounds: int = 4) -> None:
    """Measure both ways of writing at each distance, in turns."""
    logging.disable(logging.WARNING)  # of refused batches
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in FIGURES}
    for delay_ms in figures.numbers(delays_ms):
        with (
            far_away(delay_ms / 1000) as many,
            far_away(delay_ms / 1000) as single,
            refused(single.client, "BatchExecuteStatement", code="UnknownOperationException"),
        ):
            measured_once(many, tasks)  # lets Java compile
            ways = {
                TOGETHER: partial(measured_once, many, tasks),
                ALONE: partial(measured_once, single, tasks),
            }
            results = in_turns(ways, rounds)
        for name, by_delay in found.items():
            by_delay[str(delay_ms)] = {way: [one[name] for one in each] for way, each in results.items()}
    figures.write("distance", {"rounds": rounds, "slots": FAR_SLOTS, "tasks": tasks, **found})


PUTS: Final = 2000
# Coroutines that put at the same time.
PUTTERS: Final = 50
SLEEPERS: Final = 500
SLEEP_SECONDS: Final = 1.0
POOL_CONNECTIONS: Final = 10
PATIENCE_SECONDS: Final = 120


@asynccontextmanager
async def opened_freshq(server: Postgres, sleep: Sleep | None) -> AsyncIterator[Put]:
    """Yield a function that puts a task; given `sleep`, a worker runs the tasks at the same time."""
    queue = Queue.sql(server.url, max_connections=POOL_CONNECTIONS)
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleeps(_task: object) -> None:
        if sleep is not None:
            await sleep()

    async with AsyncQueue(queue, POOL_CONNECTIONS) as async_queue:
        await async_queue.create_table()
        await async_queue.purge(confirm=queue.name)
        put = partial(async_queue.put, SMALL_PAYLOAD, kind="sleep")
        if sleep is None:
            yield put
        else:
            async with Worker(queue, handlers, concurrency=SLEEPERS).serving():
                yield put


@asynccontextmanager
async def opened_procrastinate(server: Postgres, sleep: Sleep | None) -> AsyncIterator[Put]:
    """Yield a function that defers a job; given `sleep`, a worker runs the jobs at the same time."""
    procrastinate: Any = importlib.import_module("procrastinate")
    connector = procrastinate.PsycopgConnector(conninfo=conninfo(server), max_size=POOL_CONNECTIONS)
    app = procrastinate.App(connector=connector)

    @app.task(name="sleep")  # type: ignore[untyped-decorator]  # the package may be missing
    async def sleeps(**_payload: object) -> None:
        if sleep is not None:
            await sleep()

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
        worker = None
        if sleep is not None:
            worker = asyncio.create_task(
                app.run_worker_async(concurrency=SLEEPERS, install_signal_handlers=False)
            )
        yield lambda: sleeps.defer_async(**SMALL_PAYLOAD)
        if worker is not None:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker


QUEUES: Final[dict[str, Opened]] = {"freshq": opened_freshq, "procrastinate": opened_procrastinate}


async def puts_per_second(server: Postgres, opened: Opened) -> float:
    """Put tasks from many coroutines."""
    async with opened(server, None) as put:

        async def put_some() -> None:
            for _ in range(PUTS // PUTTERS):
                await put()

        await put()  # opens the first connection
        started = time.monotonic()
        await asyncio.gather(*(put_some() for _ in range(PUTTERS)))
        return PUTS / (time.monotonic() - started)


async def run_sleepers(server: Postgres, opened: Opened) -> dict[str, float]:
    """Put tasks whose handlers sleep; return the seconds until all have run, and the largest counts."""
    begun = ended = connections = 0
    most = {"most_sleeping": 0, "threads": 0}

    async def sleep() -> None:
        nonlocal begun, ended
        begun += 1
        most["most_sleeping"] = max(most["most_sleeping"], begun - ended)
        most["threads"] = max(most["threads"], threading.active_count())
        await asyncio.sleep(SLEEP_SECONDS)
        ended += 1

    async with opened(server, sleep) as put:
        await asyncio.sleep(1)  # the worker is waiting for tasks by now
        started = time.monotonic()
        puts = asyncio.gather(*(put() for _ in range(SLEEPERS)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while ended < SLEEPERS:
                await asyncio.sleep(0.01)
                if not connections and begun == SLEEPERS:
                    connections = await asyncio.to_thread(connections_of, server)
        seconds = time.monotonic() - started
        await puts
    return {"seconds": seconds} | most | {"connections": connections}


def connections_of(server: Postgres) -> int:
    """Return the number of a server's other connections."""
    with psycopg.connect(conninfo(server)) as connection:
        row = connection.execute(CONNECTIONS).fetchone()
    return int(row[0]) if row else 0


def both(server: Postgres, opened: Opened) -> dict[str, float]:
    """Return the figures of one queue in one round."""
    rate = asyncio.run(puts_per_second(server, opened))
    return {"puts_per_second": rate} | asyncio.run(run_sleepers(server, opened))


def coroutines(rounds: int = 3) -> None:
    """Measure the queues that are installed."""
    with Postgres(durable=True) as server:
        contenders = {
            name: partial(both, server, opened) for name, opened in QUEUES.items() if find_spec(name)
        }
        found = in_turns(contenders, rounds)
    queues = {
        name: {"version": version(name)}
        | {figure: [each[figure] for each in results] for figure in results[0]}
        for name, results in found.items()
    }
    setting = {"puts": PUTS, "putters": PUTTERS, "sleepers": SLEEPERS, "sleep_seconds": SLEEP_SECONDS}
    figures.write("asyncio", setting | {"queues": queues})
