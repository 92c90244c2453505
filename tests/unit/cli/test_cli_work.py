"""The parts of `freshq work`: refusals, output and reports, without a separate process."""

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from freshq import Queue, Task, Worker
from freshq.addresses import open_queue, open_together, with_connections
from freshq.cli.commands import supervisor
from freshq.cli.commands import supervisor as process
from freshq.cli.commands.supervisor import Child, Supervisor, exit_status_of
from freshq.cli.commands.work import COUNTERS_FOLDER, checks_of, health_server
from freshq.cli.errors import CheckedOutput, OneLineLog
from freshq.cli.http_server import metrics_page
from freshq.cli.main import app
from freshq.cli.output import Output
from freshq.cli.process import (
    ControlChannel,
    ControlMessage,
    Display,
    JsonLines,
    ProcessStatus,
    ReportingHandler,
    Stage,
    report_log,
    reporter_of,
)
from freshq.queue.core import core_of
from freshq.worker import lease_loop
from freshq.worker.report import Outcome, WorkerState, WorkerStatus
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused
from tests.support.work_process import until
from tests.support.worker_threads import Quiet, SlowClaims

run = CliRunner().invoke

RUNNERS = """
def takes_nothing(): ...
async def is_async(task): ...
number = 1
def run(task): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with runners; sys.path is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "runners_here.py").write_text(RUNNERS)
    (tmp_path / "broken_here.py").write_text("import no_such_package")
    (tmp_path / "failing_here.py").write_text("\n1 / 0")
    (tmp_path / "unset_here.py").write_text("import os\n\nkey = os.environ['NO_SUCH_KEY']")
    (tmp_path / "unfinished_here.py").write_text("def run(:")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["no_such_module:run"],
            "'no_such_module' cannot be imported (No module named 'no_such_module'); run",
        ),
        (["broken_here:run"], "'broken_here' cannot be imported (No module named 'no_such_package')\n"),
        (["failing_here:run"], "failing_here.py, line 2: ZeroDivisionError: division by zero"),
        (["unset_here:run"], "unset_here.py, line 3: KeyError: 'NO_SUCH_KEY'"),
        (["runners_here.py:run"], "'runners_here.py' is a file, not a module; write 'runners_here:run'"),
        (["./runners_here:run"], "'./runners_here' is a file, not a module; write 'runners_here:run'"),
        (["unfinished_here:run"], "unfinished_here.py, line 1: SyntaxError: "),
        (["runners_here:runs"], "has no function 'runs'; is it 'run'?"),
        (["runners_here:number"], "has a int, not a function, as 'number'"),
        (["runners_here:takes_nothing"], "must take a task, but its arguments are ()"),
        (["runners_here:is_async"], "is an async function; register it with freshq.Handlers"),
        (["runners_here:run", "--transaction"], "must take a task and a connection"),
        (["runners_here:run", "--transaction", "--at-most-once"], "at_most_once: not with transaction"),
        (["runners_here:run", "--concurrency", "0"], "concurrency: "),
        (["runners_here:run", "--limit-lowest", "2"], "limit_lowest, limit_highest: give both, or neither"),
        (["runners_here:run", "--limit-lowest", "3", "--limit-highest", "2"], "lowest, highest: need 1 <="),
        (["runners_here:run", "--health-port", "99999"], "health_port: cannot listen on 127.0.0.1:99999"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_starts(
    folder: Path, sqlite_url: str, arguments: list[str], message: str
) -> None:
    del folder
    answer = run(app, ["work", *arguments, "--queue", sqlite_url])
    assert answer.exit_code == 2
    assert message in answer.stderr.replace("freshq: ", "", 1)
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_folder_for_counters_that_cannot_be_made_is_named(
    folder: Path, sqlite_url: str, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv(COUNTERS_FOLDER, str(folder / "file" / "none"))
    given = ["runners_here:run", "--health-port", "0", "--processes", processes]
    answer = run(app, ["work", *given, "--queue", sqlite_url])
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert f"{COUNTERS_FOLDER}: cannot make the folder" in answer.stderr


def test_a_missing_folder_for_counters_is_made(
    folder: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COUNTERS_FOLDER, str(folder / "new" / "counters"))
    given = ["runners_here:run", "--health-port", "0", "--dry-run"]
    assert run(app, ["work", *given, "--queue", sqlite_url]).exit_code == 0
    assert (folder / "new" / "counters").is_dir()


def test_without_a_temporary_folder_no_process_starts(
    folder: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COUNTERS_FOLDER, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(folder / "none"))
    given = ["runners_here:run", "--health-port", "0", "--processes", "2"]
    answer = run(app, ["work", *given, "--queue", sqlite_url])
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert "let TMPDIR or PROMETHEUS_MULTIPROC_DIR name a folder" in answer.stderr


def test_a_store_without_transactions_is_refused(folder: Path, account_client: object) -> None:
    del account_client
    (folder / "two.py").write_text("def run(task, connection): ...")
    answer = run(app, ["work", "two:run", "--transaction", "--queue", "dynamodb://Tasks"])
    assert answer.exit_code == 2
    assert "transaction: needs a queue in a SQL database" in answer.stderr


def test_a_queue_in_memory_is_refused(folder: Path) -> None:
    del folder
    answer = run(app, ["work", "runners_here:run", "--queue", "memory://"])
    assert (answer.exit_code, "use sqlite:///FILE" in answer.stderr) == (2, True)


OBJECTS = """
from freshq import Queue, Worker
queue = Queue.sql({url!r})
worker = Worker(queue, print, concurrency=2, idle_exit_seconds=0.2)
"""


class TestObjectsOfTheApplication:
    @pytest.fixture(autouse=True)
    def _objects(self, folder: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Write a queue and a worker into a module of the current folder; the stored order is FIFO."""
        monkeypatch.delenv("FRESHQ_QUEUE", raising=False)
        (folder / "objects_here.py").write_text(OBJECTS.format(url=sqlite_url))
        with closing(Queue.sql(sqlite_url)) as queue:
            queue.configure(order="fifo")
            for name in "abc":
                queue.put("work", task_id=name)
        yield
        sys.modules.pop("objects_here", None)

    @pytest.mark.parametrize(
        "arguments", [["print:print", "--queue", "objects_here:queue"], ["objects_here:worker"]]
    )
    def test_a_queue_or_a_worker_is_used(self, arguments: list[str]) -> None:
        arguments = [each.replace("print:", "builtins:") for each in arguments]
        answer = run(app, ["work", *arguments, "--dry-run", "--json"])
        assert answer.exit_code == 0, answer.stderr
        tasks = [task["task_id"] for task in json.loads(answer.stdout)["tasks"]]
        assert tasks == (["a", "b"] if len(arguments) == 1 else ["a", "b", "c"])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["objects_here:worker", "--queue", "sqlite:///x.db"], "queue: objects_here:worker is a worker"),
            (["objects_here:worker", "--name", "mail"], "name: objects_here:worker is a worker"),
            (["objects_here:worker", "--concurrency", "3"], "concurrency: objects_here:worker is a worker"),
            (["builtins:print", "--queue", "objects_here:worker"], "queue: must be a queue, such as"),
            (["builtins:print", "--queue", "objects_here:nothing"], "has no queue 'nothing'"),
            (
                ["builtins:print", "--queue", "objects_here:queue", "--name", "m"],
                "name: the application's queue has a name",
            ),
        ],
    )
    def test_contradictions_are_refused(self, arguments: list[str], message: str) -> None:
        answer = run(app, ["work", *arguments])
        assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
        assert message in answer.stderr

    def test_every_command_takes_the_queue(self) -> None:
        shown = json.loads(run(app, ["configure", "--json", "--queue", "objects_here:queue"]).stdout)
        assert shown["order"] == {"value": "fifo", "source": "stored"}

    def test_a_process_runs_the_worker(self, folder: Path, sqlite_url: str) -> None:
        command = [sys.executable, "-m", "freshq.cli", "work", "objects_here:worker"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0
        with closing(Queue.sql(sqlite_url)) as queue:
            assert queue.stats().success == 3


KINDS = """
from freshq import Handlers

handlers = Handlers()

@handlers.on("quote")
def quote(task): ...

@handlers.on("mail")
def mail(task): raise OSError("down")
"""


class TestLines:
    @pytest.fixture
    def lines_of(self, folder: Path, sqlite_url: str) -> Callable[..., list[str]]:
        """Return a function that works off a queue with two tasks in a process, and returns its lines."""
        (folder / "kinds_here.py").write_text(KINDS)
        with closing(Queue.sql(sqlite_url, max_attempts=1)) as queue:
            queue.create_table()
            queue.put("work", task_id="a", kind="quote")
            queue.put("work", task_id="b", kind="mail")
        command = [sys.executable, "-m", "freshq.cli", "work", "kinds_here:handlers", "--queue", sqlite_url]

        def lines(*arguments: str) -> list[str]:
            words = [*command, "--idle-exit-seconds", "0.2", *arguments]
            done = subprocess.run(
                words, cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS
            )
            return done.stdout.splitlines()

        return lines

    def test_they_name_the_kinds_and_each_failed_run_once(self, lines_of: Callable[..., list[str]]) -> None:
        events = [json.loads(line) for line in lines_of()]
        assert events[0]["kinds"] == ["mail", "quote"]
        (log,) = [event for event in events if event["event"] == "log"]
        assert (log["level"], log["task_id"], log["kind"]) == ("ERROR", "b", "mail")
        assert log["traceback"].endswith("OSError: down\n")

    def test_verbose_has_a_line_for_each_run_as_text_if_asked(
        self, lines_of: Callable[..., list[str]]
    ) -> None:
        lines = lines_of("--verbose", "--text")
        assert "kinds mail, quote" in lines[0]
        ends = sorted(re.findall(r"(INFO|ERROR) task (\w) (\w+)", "\n".join(lines)))
        assert ends == [("ERROR", "b", "failed"), ("INFO", "a", "succeeded")]

    def test_json_and_text_contradict_each_other(self, folder: Path, sqlite_url: str) -> None:
        del folder
        answer = run(app, ["work", "runners_here:run", "--queue", sqlite_url, "--json", "--text"])
        assert (answer.exit_code, answer.stderr) == (2, "freshq: --text: not with --json\n")


class TestSeveralQueues:
    @pytest.fixture
    def addresses(self, folder: Path, sqlite_url: str) -> list[str]:
        (folder / "kinds_here.py").write_text(KINDS)
        with closing(Queue.sql(sqlite_url)) as queue:
            queue.create_table()
        return [f"{sqlite_url}?name={name}" for name in ("mail", "quotes")]

    def test_they_are_worked_in_one_process(self, folder: Path, addresses: list[str]) -> None:
        for address in addresses:
            with closing(open_queue(address)) as queue:
                queue.put("work", kind="quote", task_id="a")
        flags = [word for address in addresses for word in ("--queue", address)]
        command = [sys.executable, "-m", "freshq.cli", "work", "kinds_here:handlers", *flags]
        done = subprocess.run(
            [*command, "--concurrency", "quotes=10", "--idle-exit-seconds", "0.2"],
            cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[0]["queues"] == {"mail": 3, "quotes": 10}
        assert events[-1]["outcomes"]["succeeded"] == 2

    @pytest.mark.matrix("processes")
    @pytest.mark.parametrize("processes", ["1", "2"])
    def test_the_application_may_list_them(self, folder: Path, addresses: list[str], processes: str) -> None:
        queues = f"from freshq.addresses import open_together\nqueues = open_together({addresses!r})\n"
        (folder / "queues_here.py").write_text(queues + "none = []\n")
        for address in addresses:
            with closing(open_queue(address)) as queue:
                queue.put("work", kind="quote", task_id="a")
        command = [sys.executable, "-m", "freshq.cli", "work", "kinds_here:handlers"]
        command += ["--queue", "queues_here:queues"]
        done = subprocess.run(
            [*command, "--idle-exit-seconds", "0.2", "--processes", processes],
            cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[0]["queues"] == {"mail": 3, "quotes": 3}
        ends = [event["outcomes"] for event in events if event["event"] == "ended"]
        assert sum(outcomes.get("succeeded", 0) for outcomes in ends) == 2

    def test_other_commands_take_one_queue(self, folder: Path, addresses: list[str]) -> None:
        queues = f"from freshq.addresses import open_together\nqueues = open_together({addresses!r})\n"
        (folder / "listed_here.py").write_text(queues + "none = []\n")
        for name, message in {"queues": "listed_here:queues has 2 queues", "none": "must be a queue"}.items():
            answer = run(app, ["stats", "--queue", f"listed_here:{name}"])
            assert (answer.exit_code, message in answer.stderr) == (2, True), answer.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--concurrency", "mail=2,3"], "concurrency: must be a number, or numbers by queue"),
            (["--concurrency", "mail=x"], "concurrency: must be a number, or numbers by queue"),
            (["--concurrency", "chat=2"], "concurrency: there is no queue 'chat'; use mail, quotes"),
            (["--concurrency", "mail=0"], "concurrency: input should be greater than or equal to 1"),
            (["--name", "mail"], "name: not with several queues"),
            (["--queue", "app:queue"], "queue: app:queue is a queue of the application"),
        ],
    )
    def test_contradictions_are_refused(
        self, addresses: list[str], arguments: list[str], message: str
    ) -> None:
        flags = [word for address in addresses for word in ("--queue", address)]
        answer = run(app, ["work", "kinds_here:handlers", *flags, *arguments])
        assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
        assert message in answer.stderr

    def test_a_queue_named_twice_is_refused(self, addresses: list[str]) -> None:
        with refused("queue"):
            open_together([addresses[0], addresses[1], addresses[0]])

    def test_databases_of_their_own_have_their_own_connections(
        self, addresses: list[str], tmp_path: Path
    ) -> None:
        mail, quotes, other = open_together([*addresses, f"sqlite:///{tmp_path / 'b.db'}?name=mail"], 20)
        engines = [core_of(queue).store.database.engine for queue in (mail, quotes, other)]  # type: ignore[attr-defined]
        assert engines[0] is engines[1] is not engines[2]
        for queue in (quotes, mail, other):
            queue.close()


class TestDryRun:
    def next_of(self, url: str, *arguments: str) -> list[str]:
        answer = run(app, ["work", "runners_here:run", "--queue", url, "--dry-run", "--json", *arguments])
        assert answer.exit_code == 0, answer.stderr
        return [task["task_id"] for task in json.loads(answer.stdout)["tasks"]]

    @pytest.mark.parametrize(("order", "expected"), [("lifo", ["c", "b", "a"]), ("fifo", ["c", "a", "b"])])
    def test_it_shows_what_claims_would_take_and_takes_nothing(
        self, folder: Path, sqlite_url: str, order: str, expected: list[str]
    ) -> None:
        del folder
        queue = Queue.sql(sqlite_url, order=order)
        for name in "ab":
            queue.put("work", task_id=name)
        queue.put("urgent", task_id="c", priority=9)
        queue.put("later", task_id="d", delay_seconds=500)
        before = list(queue.list())
        assert self.next_of(f"{sqlite_url}?order={order}") == expected
        assert self.next_of(f"{sqlite_url}?order={order}", "--concurrency", "1") == expected[:1]
        assert list(queue.list()) == before
        assert [claim.task.task_id for claim in queue.claim(limit=3)] == expected
        queue.close()

    def test_it_says_so_if_the_queue_is_paused(self, folder: Path, sqlite_url: str) -> None:
        del folder
        queue = Queue.sql(sqlite_url)
        queue.put("work")
        queue.pause()
        answer = run(app, ["work", "runners_here:run", "--queue", sqlite_url, "--dry-run"])
        assert "The next to be claimed, but the queue is paused:" in answer.stdout
        queue.close()


def test_tasks_in_transactions_have_a_connection_each() -> None:
    address = with_connections("sqlite:///t.db?order=fifo#jobs", 19)
    assert address == "sqlite:///t.db?order=fifo&max_connections=19#jobs"
    assert with_connections(address, 5) == address
    assert with_connections("memory://", 5) == "memory://"
    with refused("max_connections"):
        open_queue("sqlite:///t.db?max_connections=many")


def test_orders_only_ever_lead_further_towards_the_end() -> None:
    control = ControlChannel()
    seen = []
    for message in (
        ControlMessage.WAKE,
        ControlMessage.DRAIN,
        ControlMessage.DRAIN,
        ControlMessage.SIGNAL,
        ControlMessage.SIGNAL,
        ControlMessage.DRAIN,
    ):
        control.send(message)
        seen.append(control.receive(1))
    assert seen == [
        Stage.WORKING,
        Stage.DRAINING,
        Stage.DRAINING,
        Stage.STOPPING,
        Stage.STOPPING,
        Stage.STOPPING,
    ]
    assert control.receive(0) is Stage.STOPPING


def test_the_end_of_a_supervisor_is_an_order_to_drain() -> None:
    control = ControlChannel()
    reading, writing = os.pipe()
    control.follow(reading)
    os.write(writing, b"wake\n")
    assert control.receive(PATIENCE_SECONDS) is Stage.WORKING
    os.close(writing)
    assert control.receive(PATIENCE_SECONDS) is Stage.DRAINING
    os.close(reading)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([0, 0], 0), ([0, 4], 4), ([3, 0], 3), ([2, None], 2), ([2, 4], 2), ([-9, 0], 4), ([None], 0)],
)
def test_the_exit_status_of_several_processes_is_the_worst(statuses: list[int | None], expected: int) -> None:
    assert exit_status_of(statuses) == expected


@pytest.mark.parametrize(
    "line", ['{"event": "started", "port": 1}', '{"time": 1, "event": "x", "process": 7}', "no JSON", "[1]"]
)
def test_a_line_of_another_program_is_output(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    child = Child(1, ["unused"])
    monkeypatch.setattr(child, "lines", lambda: [line + "\n"])
    supervisor = Supervisor([[]], JsonLines(stream, 0), ControlChannel())
    supervisor._tend(child)
    event = json.loads(stream.getvalue())
    assert (event["event"], event["process"], event["text"]) == ("output", 1, line)


@pytest.mark.usefixtures("folder")
def test_each_process_gets_the_arguments_of_the_command_behind_its_number(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["work", "--queue", sqlite_url, "--processes", "2", "--", "runners_here:run"]
    seen: list[list[str]] = []

    def supervised(commands: list[list[str]], *_: object) -> Supervisor:
        seen.extend(commands)
        return Supervisor([[sys.executable, "-S", "-c", ""]], *_)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor, "Supervisor", supervised)
    monkeypatch.setattr(sys, "argv", ["freshq", *words])
    assert run(app, words).exit_code == 0
    assert [command[4:] for command in seen] == [
        ["work", "--supervised", number, *words[1:]] for number in ("1", "2")
    ]


def test_the_last_lines_of_a_process_are_there_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LAST_LINES_SECONDS", PATIENCE_SECONDS)
    child = Child(1, [sys.executable, "-S", "-c", "for each in range(5000): print(each)"])
    child.start()
    assert until(lambda: child.ended() is not None)
    assert len(child.lines()) == 5000


def process_status(**values: Any) -> ProcessStatus:
    status = WorkerStatus(**{"state": WorkerState.WORKING, "store_answers": True, **values})
    return ProcessStatus(1, os.getpid(), asdict(status))


class TestHealth:
    checks = checks_of(lease_seconds=60, poll_seconds=0.5)

    def test_a_loop_that_does_not_turn_is_not_live(self) -> None:
        assert not self.checks["/live"]([process_status(), process_status(turned_seconds=121.0)])
        assert self.checks["/live"]([process_status(turned_seconds=100.0)])

    def test_ready_is_a_process_that_takes_tasks(self) -> None:
        away = process_status(store_answers=False)
        waits = process_status(turned_seconds=6.0)
        draining = process_status(state=WorkerState.DRAINING)
        assert not self.checks["/ready"]([])
        assert not self.checks["/ready"]([away, waits, draining])
        assert self.checks["/ready"]([away, process_status()])

    def test_a_port_in_use_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with refused("health_port"):
                health_server("127.0.0.1", port, self.checks, list, metrics_page)


def test_a_worker_that_waits_for_its_store_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 0.05)
    store, control, stream = SlowClaims(), ControlChannel(), io.StringIO()
    worker = Worker(Queue(store), str)

    def interrupt_twice() -> None:
        assert store.waits.wait(PATIENCE_SECONDS)
        control.send(ControlMessage.SIGNAL)
        control.send(ControlMessage.SIGNAL)

    interrupter = threading.Thread(target=interrupt_twice)
    interrupter.start()
    try:
        status = process.WorkProcess(worker, JsonLines(stream, 60), control, None).run()
    finally:
        store.answer.set()
        interrupter.join(PATIENCE_SECONDS)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    names = [each["event"] for each in events if each["event"] != "status"]
    assert names == ["draining", "stopping", "ended"]
    assert (status, events[-1]["exit_status"]) == (4, 4)
    assert "did not stop within 0.05 s" in events[-1]["problem"]


def test_after_drain_seconds_the_tasks_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(lease_loop, "GIVE_BACK_SECONDS", PATIENCE_SECONDS)
    queue, control, stream = Queue.memory(), ControlChannel(), io.StringIO()
    observer = Quiet()
    started, release = threading.Event(), threading.Event()

    def runner(task: Task) -> None:
        del task
        started.set()
        control.send(ControlMessage.DRAIN)
        assert release.wait(PATIENCE_SECONDS)

    queue.put("work", task_id="a")
    try:
        worker = Worker(queue, runner, poll_seconds=0.01, observer=observer)
        status = process.WorkProcess(worker, JsonLines(stream, 60), control, drain_seconds=0.05).run()
        assert [claim.task.task_id for claim in queue.claim()] == ["a"]
    finally:
        release.set()
    assert observer.settlements == [("a", Outcome.GIVEN_BACK, "the worker was stopped immediately")]
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (status, events[-1]["given_back"], started.is_set()) == (4, ["a"], True)


class TestReports:
    def test_the_log_is_lines_of_json_with_tracebacks(self) -> None:
        stream = io.StringIO()
        logger, handler = logging.getLogger("app"), ReportingHandler(JsonLines(stream, 60))
        logger.addHandler(handler)
        logger.info("not shown")
        logger.error("it failed on %s", "a", exc_info=ValueError("two\nlines"))
        logger.removeHandler(handler)
        (event,) = map(json.loads, stream.getvalue().splitlines())
        assert (event["level"], event["logger"], event["message"]) == ("ERROR", "app", "it failed on a")
        assert event["traceback"].endswith("ValueError: two\nlines\n")

    def test_the_application_keeps_its_own_handlers(self) -> None:
        ours, own = logging.getLogger("freshq"), logging.NullHandler()
        ours.handlers += [OneLineLog(logging.WARNING), own]
        report_log(JsonLines(io.StringIO(), 60))
        assert own in ours.handlers
        assert [handler for handler in ours.handlers if isinstance(handler, OneLineLog)] == []

    @pytest.mark.parametrize(("as_json", "as_text"), [(True, False), (False, True)])
    def test_a_reader_that_is_gone_ends_nothing(
        self, monkeypatch: pytest.MonkeyPatch, *, as_json: bool, as_text: bool
    ) -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            monkeypatch.setattr(sys, "stdout", CheckedOutput(pipe))
            lines = reporter_of(Output(as_json=as_json), as_text=as_text)
            lines.event("started")
            assert b"started" in os.read(reading, 1000)
            os.close(reading)
            for _ in range(3):
                lines.event("draining")
            sys.stdout.flush()  # the end of the process does the same, and reports no lost answer

    def test_the_status_is_printed_from_time_to_time(self) -> None:
        stream = io.StringIO()
        lines = JsonLines(stream, 1000)
        for _ in range(3):
            lines.status([process_status(running=2)])
        (event,) = map(json.loads, stream.getvalue().splitlines())
        assert event["processes"][0]["running"] == 2

    def test_the_terminal_shows_processes_and_the_log_without_control_characters(self) -> None:
        stream = io.StringIO()
        display = Display(Console(file=stream, force_terminal=True, width=100), "app:run works queue default")
        outcomes = dict.fromkeys(Outcome, 0) | {Outcome.SUCCEEDED: 1234, Outcome.SHED: 5}
        display.status([process_status(running=7, outcomes=outcomes)])
        display.event("log", level="ERROR", message="bad \x1b[2J", traceback="one\ntwo")
        display.event("ended", exit_status=0, outcomes={"succeeded": 3, "failed": 0}, given_back=["a", "b"])
        display.close()
        shown = stream.getvalue()
        assert "app:run works queue default" in shown
        assert "1,234" in shown
        assert r"bad \u001b[2J" in shown
        assert "exit status 0  given back a, b  succeeded 3" in shown.replace("\x1b[0m", "")
