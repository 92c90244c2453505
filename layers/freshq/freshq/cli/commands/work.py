"""`freshq work`: run the tasks of a queue."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TextIO, cast

import typer

from freshq.addresses import Address, names_object, open_queue, open_together, with_connections
from freshq.cli.command import (
    QUEUE_PANEL,
    QueueContext,
    application_imports,
    is_given,
    queues_of_application,
    with_flags,
)
from freshq.cli.commands.supervisor import WorkProcess
from freshq.cli.errors import LastingOutput
from freshq.cli.http_server import LOOPBACK, METRICS, HttpResponse, HttpServer, metrics_page
from freshq.cli.process import ControlChannel, JsonLines, end_process, reporter_of, reporting
from freshq.cli.session import refuse_memory
from freshq.errors import MissingExtra, StoreError, quoted, without_secrets
from freshq.model.answers import WaitsFor
from freshq.model.fields import DEFAULT_NAME
from freshq.model.telemetry import everywhere
from freshq.policy.limits import ConcurrencyLimit
from freshq.queue.core import core_of
from freshq.worker.options import WorkerConfig, parse_worker_options
from freshq.worker.runner import load_runner
from freshq.worker.worker import Worker, Workers, kinds_of, load_worker, made_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.cli.output import Output
    from freshq.cli.process import ProcessStatus, Reporter
    from freshq.cli.session import Session
    from freshq.queue.base import BaseQueue
    from freshq.worker.options import WorkerOptions

# The option that makes a process a child of a supervisor.
SUPERVISED: Final = "--supervised"
MAX_PROCESSES: Final = 1000
LIMITS: Final = "Limits"
ENDS: Final = "Ends"
OPERATION: Final = "Operation"
# The options of a worker that are flags, with the headings that help lists them under.
FLAGS: Final = {
    "transaction": None,
    "at_most_once": None,
    "isolate": None,
    "rate_per_second": LIMITS,
    "max_run_seconds": LIMITS,
    "kill_grace_seconds": LIMITS,
    "recycle_runs": LIMITS,
    "recycle_mb": LIMITS,
    "poll_seconds": LIMITS,
    "drain_seconds": ENDS,
    "idle_exit_seconds": ENDS,
    "give_up_seconds": ENDS,
}
RunnerName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="The runner, such as app:run, in the current folder; or a Worker, which has its own queue.",
    ),
]
CONCURRENCY: Final = WorkerConfig.model_fields["concurrency"]
Concurrency = Annotated[
    str,
    typer.Option(
        metavar="N", help=f"{CONCURRENCY.description} For several queues by name, such as mail=2,quotes=10."
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="URL",
        help="Address of the queue, such as postgresql://HOST/NAME?name=mail, or app:queue; by default that "
        "of FRESHQ_QUEUE or DATABASE_URL. Several, or a list in the application, are worked in one process.",
        rich_help_panel=QUEUE_PANEL,
    ),
]
LimitLowest = Annotated[
    int | None,
    typer.Option(
        help="Lower bound of the number of tasks that all workers of the queue run at a time.",
        rich_help_panel=LIMITS,
    ),
]
LimitHighest = Annotated[
    int | None,
    typer.Option(
        help="Upper bound. Between the bounds the limit adapts to push-back from the downstream.",
        rich_help_panel=LIMITS,
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_PROCESSES,
        help="Number of processes. A process that dies is replaced.",
        rich_help_panel=OPERATION,
    ),
]
# The folder in which prometheus_client keeps the values of several processes.
COUNTERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
# Prefix of the temporary folders that supervisors make, each for its own processes.
OWN_FOLDER: Final = "freshq-metrics-"


def _count_for(context: typer.Context, health_port: int | None) -> int | None:
    """Start to count before any queue is opened, if `/metrics` is to be served.

    Raises:
        ValueError: If the environment names a folder for the counters that cannot be made.
    """
    with suppress(MissingExtra):  # /metrics will name the missing package
        if health_port is not None and not context.resilient_parsing:
            from freshq.telemetry.prometheus import Prometheus, share_values

            number, folder = context.params["supervised"], Path(os.environ.get(COUNTERS_FOLDER, ""))
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                msg = f"{COUNTERS_FOLDER}: cannot make the folder ({error}); name another one, or unset it"
                raise ValueError(msg) from error
            if number and folder.name.startswith(OWN_FOLDER):
                share_values(number)
            context.with_resource(everywhere(Prometheus()))
    return health_port


HealthPort = Annotated[
    int | None,
    typer.Option(
        help="Port of /live, /ready and /metrics; 0 for a free one.",
        rich_help_panel=OPERATION,
        callback=_count_for,
    ),
]
HealthHost = Annotated[
    str,
    typer.Option(
        help="Address of that port; 0.0.0.0 for probes and a Prometheus elsewhere.",
        rich_help_panel=OPERATION,
    ),
]
StatusSeconds = Annotated[
    float, typer.Option(min=0, help="Time between two status lines of JSON.", rich_help_panel=OPERATION)
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show the tasks that would be claimed, and claim none.", rich_help_panel=OPERATION
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Also print a line for each run.", rich_help_panel=OPERATION),
]
AsText = Annotated[
    bool,
    typer.Option(
        "--text", help="Print lines for people, not JSON, into a file or pipe.", rich_help_panel=OPERATION
    ),
]
Supervised = Annotated[
    int, typer.Option(SUPERVISED, hidden=True, is_eager=True, help="The number of the child.")
]
# A store call may take nine tenths of a lease, and a round of the loop makes a few calls.
LEASES_PER_LOOP: Final = 2
MIN_LOOP_SECONDS: Final = 30.0
# A store that does not answer for this time is unreachable, even if the call has not failed yet.
ANSWER_SECONDS: Final = 5.0
# Connections besides one per task: for upkeep, the control record and shared limits.
OTHER_CONNECTIONS: Final = 3
# Interval under a supervisor, which shows the status itself.
SUPERVISED_STATUS_SECONDS: Final = 0.5


def checks_of(
    lease_seconds: float, poll_seconds: float
) -> dict[str, Callable[[Sequence[ProcessStatus]], bool]]:
    """Return the health checks of processes by path, for the leases of a queue and the pauses of its workers.

    `/live` fails if a process has a stuck loop, `/ready` if none claims tasks.
    """
    live_seconds = poll_seconds + max(MIN_LOOP_SECONDS, LEASES_PER_LOOP * lease_seconds)
    ready_seconds = poll_seconds + ANSWER_SECONDS
    return {
        "/live": lambda processes: all(each.turned_seconds < live_seconds for each in processes),
        "/ready": lambda processes: any(
            each.takes_tasks and each.turned_seconds < ready_seconds for each in processes
        ),
    }


def health_server(
    host: str,
    port: int,
    checks: Mapping[str, Callable[[Sequence[ProcessStatus]], bool]],
    processes: Callable[[], Sequence[ProcessStatus]],
    metrics: Callable[[], HttpResponse],
) -> HttpServer:
    """Return a server of `/live`, `/ready` and `/metrics` that listens.

    Args:
        host: Address to listen on.
        port: Port; 0 for a free one.
        checks: The checks by path.
        processes: Returns the status of the processes.
        metrics: Returns the counters of the processes.

    Raises:
        ValueError: If it cannot listen there.
    """

    def answer(path: str) -> HttpResponse:
        if path == METRICS:
            return metrics()
        if path not in checks:
            pages = ", ".join((*checks, METRICS))
            return _json(HTTPStatus.NOT_FOUND, {"error": f"no such page; there are {pages}"})
        found = processes()
        status = HTTPStatus.OK if checks[path](found) else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"processes": [each.as_json() for each in found]})

    return HttpServer(answer, host, port, "health_port")


def _json(status: HTTPStatus, values: dict[str, Any]) -> HttpResponse:
    return HttpResponse(status, "application/json", json.dumps(values).encode())


@dataclass(frozen=True, slots=True)
class WorkJob:
    """The arguments of one run of the command.

    Attributes:
        session: The queue, or the first of several, and whether the output is JSON.
        addresses: The addresses of several queues; empty for one.
        queues: The queues of an application's list; empty for one.
        slots: The slots of several queues, by name.
        runner: Name of the runner.
        worker_options: The options of the worker.
        drain_seconds: Maximum wait for running tasks at the end; None: until they are done.
        health_address: Host and port of the health checks; without a port there are none.
        status_seconds: Time between two lines with the status.
        supervised: The number that a supervisor gave this process; 0 without a supervisor.
        verbose: Whether to print a line for each run.
        as_text: Whether to print for people even without a terminal.
    """

    session: Session
    addresses: Sequence[str]
    queues: Sequence[BaseQueue]
    slots: Mapping[str, int]
    runner: str
    worker_options: WorkerOptions
    drain_seconds: float | None
    health_address: tuple[str, int | None]
    status_seconds: float
    supervised: int
    verbose: bool
    as_text: bool


def concurrency_limit(lowest: int | None, highest: int | None) -> ConcurrencyLimit | None:
    """Return the limit between two bounds; None if there are none.

    Raises:
        ValueError: If only one bound is given, or they contradict each other.
    """
    if lowest is None and highest is None:
        return None
    if lowest is None or highest is None:
        raise ValueError("limit_lowest, limit_highest: give both, or neither")
    return ConcurrencyLimit(lowest, highest)


def begin(job: WorkJob, processes: int, *, dry_run: bool) -> None:
    """Run the command.

    Args:
        job: The arguments.
        processes: Number of processes.
        dry_run: Whether to only show the next tasks.

    Raises:
        Exit: At the end of the work, with its status.
        ValueError: If an option is wrong, or the runner cannot be loaded.
        StoreError: If a table is missing, or the store did not answer for `give_up_seconds`.
    """
    refuse_memory(job.session.address)
    core_of(job.session.queue).options.follow()
    if job.addresses:
        job.session.queue.close()  # all of them are opened together
    if processes > 1 and not job.supervised and not dry_run:
        _supervise(job, processes)
    with ExitStack() as stack:
        queues = _connected(job)
        for queue in queues:
            stack.enter_context(closing(queue))
            core_of(queue).options.follow()
        worker = _worker(job, queues)
        if not dry_run:
            _work_here(job, worker)
        for queue in queues:
            show_next(queue, job.slots[queue.name], job.session.output)


def _connected(job: WorkJob) -> list[BaseQueue]:
    """Return the queues, with enough connections for tasks in transactions."""
    session = job.session
    if job.queues:
        return [*job.queues]
    connections = sum(job.slots.values()) + OTHER_CONNECTIONS * len(job.slots)
    if job.addresses:
        return open_together(job.addresses, connections if job.worker_options["transaction"] else None)
    if session.address is None or names_object(session.address) or not job.worker_options["transaction"]:
        return [session.queue]
    return [open_queue(with_connections(session.address, connections), session.queue.name)]


def _worker(job: WorkJob, queues: Sequence[BaseQueue]) -> Worker | Workers:
    """Return the named worker, or one for each queue with the runner from the current folder."""
    with application_imports() as advice:
        named = load_worker(job.runner, advice)
        if named is not None:
            return named
        runner = load_runner(job.runner, advice)
    made = []
    for queue in queues:
        options = cast("WorkerOptions", {**job.worker_options, "concurrency": job.slots[queue.name]})
        made.append(Worker(queue, runner, **options))
    return made[0] if len(made) == 1 else Workers(*made)


def _reporter(job: WorkJob) -> Reporter:
    if job.supervised:
        return JsonLines(LastingOutput(_stdout_for_lines()), SUPERVISED_STATUS_SECONDS)
    where = without_secrets(job.session.address or "")
    title = f"{job.runner} works queue {', '.join(job.slots)} {where}"
    return reporter_of(job.session.output, job.status_seconds, title, as_text=job.as_text)


def _stdout_for_lines() -> TextIO:
    """Return standard output for the lines to the supervisor; other output goes to standard error.

    A program that the runner starts inherits the descriptor, regardless of `sys.stdout`.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def _work_here(job: WorkJob, worker: Worker | Workers) -> NoReturn:
    """Run the worker in this process, and exit with its status."""
    control = ControlChannel()
    reporter = _reporter(job)
    process = WorkProcess(worker, reporter, control, job.drain_seconds)
    if job.health_address[1] is not None:
        _expect_kinds(worker, job.slots)
    with _reporting(job, reporter, process.statuses) as port:
        control.follow_signals()
        if job.supervised:
            control.follow(sys.stdin.fileno())
        kinds = {} if (kinds := kinds_of(worker)) is None else {"kinds": kinds}
        reporter.event("started", **_facts(job), **kinds, pid=os.getpid(), health_port=port)
        status = process.run()
    end_process(status, control)


def _supervise(job: WorkJob, processes: int) -> NoReturn:
    """Run the worker in several processes, and exit with their common status.

    Raises:
        StoreError: If a permanent error ended all of them before the store ever answered.
    """
    from freshq.cli.commands.supervisor import Supervisor

    for queue in (*job.queues[::-1], job.session.queue):
        queue.close()  # each process opens its own connections
    control = ControlChannel()
    reporter = _reporter(job)
    # -P: modules of the folder must not shadow Python's. The number is first: behind -- it would be a runner.
    start = [sys.executable, "-P", "-m", "freshq.cli", *sys.argv[1:2], SUPERVISED]
    commands = [[*start, str(number), *sys.argv[2:]] for number in range(1, processes + 1)]
    supervisor = Supervisor(commands, reporter, control)
    with _shared_counters(job) as folder, _reporting(job, reporter, supervisor.statuses, folder) as port:
        control.follow_signals()
        reporter.event("started", **_facts(job), pid=os.getpid(), health_port=port, processes=processes)
        status = supervisor.run()
        if (problem := supervisor.common_problem()) is not None:
            raise StoreError(problem)
    end_process(status, control)


@contextmanager
def _shared_counters(job: WorkJob) -> Iterator[str | None]:
    """Yield the folder in which the processes keep their counters; None without a health port.

    Raises:
        ValueError: If no temporary folder can be made.
    """
    folder = None if job.health_address[1] is None else os.environ.get(COUNTERS_FOLDER, "")
    if folder != "":
        yield folder
        return
    try:
        temporary = tempfile.TemporaryDirectory(prefix=OWN_FOLDER)
    except OSError as error:
        msg = (
            f"health_port: the processes need a folder for their counters ({error}); "
            f"let TMPDIR or {COUNTERS_FOLDER} name a folder that can be written"
        )
        raise ValueError(msg) from error
    with temporary as own:
        os.environ[COUNTERS_FOLDER] = own
        yield own


def _expect_kinds(worker: Worker | Workers, queues: Iterable[str]) -> None:
    """Start the counters of known kinds at 0, if prometheus_client is installed."""
    with suppress(MissingExtra):
        from freshq.telemetry.prometheus import Prometheus

        for queue in queues:
            Prometheus().expect(queue, kinds_of(worker) or [""])


@contextmanager
def _reporting(
    job: WorkJob,
    reporter: Reporter,
    statuses: Callable[[], Sequence[ProcessStatus]],
    folder: str | None = None,
) -> Iterator[int | None]:
    """Report the log, and serve health checks and counters inside the block; yield their port."""
    with ExitStack() as stack:
        stack.enter_context(reporting(reporter, supervised=bool(job.supervised), verbose=job.verbose))
        host, port = job.health_address
        if job.supervised:
            port = None
        if port is not None:
            loop = job.worker_options["poll_seconds"]
            checks = checks_of(job.session.queue.admin.config.lease_seconds, loop)
            page = partial(metrics_page, folder)
            server = stack.enter_context(health_server(host, port, checks, statuses, page))
            Thread(target=server.serve_forever, name="freshq-health", daemon=True).start()
            stack.callback(server.shutdown)
            port = server.server_port
        yield port


def _facts(job: WorkJob) -> dict[str, Any]:
    options = job.worker_options
    holds = "transactions" if options["transaction"] else "leases"
    of_one = [{"queue": queue, "concurrency": slots} for queue, slots in job.slots.items()]
    return {
        "runner": job.runner,
        **(of_one[0] if len(of_one) == 1 else {"queues": dict(job.slots)}),
        "holds": "nothing, tasks are completed first" if options["at_most_once"] else holds,
    }


def show_next(queue: BaseQueue, limit: int, output: Output) -> None:
    """Print the tasks of the next claims, and claim none.

    Args:
        queue: The queue.
        limit: Maximum number of tasks.
        output: Prints them.

    Raises:
        StoreError: If the store did not answer.
    """
    waiting = [each for each in queue.peek(limit) if each.waits_for is not WaitsFor.DUE]
    if not output.as_json:
        paused = ", but the queue is paused" if queue.paused() else ""
        output.console.print(f"The next to be claimed{paused}:")
    output.waiting(waiting, queue.admin.now())


def _options_of_worker(context: QueueContext, name: str) -> dict[str, Any]:
    """Return the options of the worker that the command names; none if it names a runner.

    Raises:
        ValueError: If a flag contradicts them, or the object does not exist.
    """
    with application_imports() as advice:
        worker = load_worker(name, advice)
    if worker is None:
        return {}
    for option in (*FLAGS, "concurrency", "limit_lowest", "limit_highest"):
        if is_given(context, option):
            msg = f"{option}: {name} is a worker, which has its own options; set it there"
            raise ValueError(msg)
    own = made_with(worker)[1]
    return {option: getattr(own, option) for option in (*FLAGS, "concurrency")}


def several(context: QueueContext, addresses: Sequence[str] | None) -> list[str]:
    """Return the addresses if there are several queues; empty for one.

    Raises:
        ValueError: If a flag contradicts them, or an address is invalid.
    """
    if addresses is None or len(addresses) == 1:
        return []
    for option in ("stack", "name"):
        if is_given(context, option):
            msg = f"{option}: not with several queues; write the name in each address, ?name=NAME"
            raise ValueError(msg)
    for address in filter(names_object, addresses):
        msg = f"queue: {address} is a queue of the application; several queues must be addresses"
        raise ValueError(msg)
    return [*addresses]


def _listed(context: QueueContext) -> list[BaseQueue]:
    """Return the queues of the application's list that the command names; none if it names no list."""
    address = context.session.address
    queues = queues_of_application(address) if address and names_object(address) else []
    return queues if len(queues) > 1 else []


def slots_of(text: str, names: Sequence[str]) -> dict[str, int]:
    """Return the slots of each queue.

    Args:
        text: The slots of each, such as "3", or of named ones, such as "mail=2,quotes=10".
        names: The names of the queues.

    Raises:
        ValueError: If it is neither, or names another queue.
    """
    slots = dict.fromkeys(names, int(CONCURRENCY.default))
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        if not number.isdecimal() or (not equals and part != text):
            msg = f"concurrency: must be a number, or numbers by queue, mail=2,quotes=10; got {quoted(text)}"
            raise ValueError(msg)
        if not equals:
            return dict.fromkeys(names, int(number))
        if name not in slots:
            msg = f"concurrency: there is no queue {quoted(name)}; use {', '.join(names)}"
            raise ValueError(msg)
        slots[name] = int(number)
    return slots


@with_flags(WorkerConfig, FLAGS)
def work(
    context: QueueContext,
    runner: RunnerName,
    queue: Queues = None,
    concurrency: Concurrency = str(CONCURRENCY.default),
    limit_lowest: LimitLowest = None,
    limit_highest: LimitHighest = None,
    processes: Processes = 1,
    health_port: HealthPort = None,
    health_host: HealthHost = LOOPBACK,
    status_seconds: StatusSeconds = 10.0,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    text: AsText = False,
    supervised: Supervised = 0,
    **options: Any,
) -> None:
    """Run a function for each task.

    Runs until SIGTERM or Ctrl-C. One lets running tasks finish, a second gives them back.
    """
    options |= _options_of_worker(context, runner)
    addresses = several(context, queue)
    queues = _listed(context)
    names = [Address.parse(address).options.get("name", DEFAULT_NAME) for address in addresses]
    names = names or [each.name for each in queues or [context.session.queue]]
    slots = slots_of(str(options.pop("concurrency", concurrency)), names)
    for number in slots.values():
        parse_worker_options(cast("WorkerOptions", options | {"concurrency": number}))
    drain_seconds = options.pop("drain_seconds")
    worker_options = cast(
        "WorkerOptions", options | {"limit": concurrency_limit(limit_lowest, limit_highest)}
    )
    address = (health_host, health_port)
    of_lines = (status_seconds, supervised, verbose, text)
    job = WorkJob(
        context.session, addresses, queues, slots, runner, worker_options, drain_seconds, address, *of_lines
    )
    begin(job, processes, dry_run=dry_run)
