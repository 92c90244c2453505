"""`freshq schedule`: sources of schedules, output, ticks and end."""

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from freshq import AttachedQueue, Queue
from freshq.cli.commands.schedule import _fire_until_told, fire_once, load_schedules, show_next
from freshq.cli.errors import ExitStatus
from freshq.cli.main import app
from freshq.cli.output import Output
from freshq.cli.process import ControlChannel, ControlMessage, EventLines, JsonLines
from freshq.cli.session import Session
from freshq.errors import RefusedError
from freshq.feeds import Cron, Every, Schedule, Scheduler
from freshq.queue.attached import AttachedStore
from freshq.queue.core import core_of
from freshq.stores.memory import MemoryStore
from tests.conftest import START, Clock
from tests.support.functions import PROJECT
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused

EXAMPLE = PROJECT / "examples" / "sqlite" / "schedules.toml"
MODULE = """
from freshq.feeds import Every, Schedule
schedules = [Schedule.of("poll", Every(60), lambda instant: instant.isoformat())]
empty = []
number = 7
mixed = [*schedules, "poll"]
"""
WRONG = """
from freshq.feeds import Every, Schedule

schedules = [Schedule.of("poll", Every(60), None, catch_up=0)]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with modules; sys.path is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "schedules_here.py").write_text(MODULE)
    (tmp_path / "wrong_schedules_here.py").write_text(WRONG)
    return tmp_path


def test_the_page_shows_the_example() -> None:
    page = (PROJECT / "docs" / "schedules.md").read_text("utf-8")
    assert f"```toml\n{EXAMPLE.read_text('utf-8')}```" in page


class TestSources:
    def test_a_file(self, folder: Path) -> None:
        shutil.copy(EXAMPLE, folder)
        report, prices = load_schedules("schedules.toml")
        assert (report.name, report.when) == ("report", Cron("30 2 * * *", "Europe/Berlin"))
        assert report.arguments == {"kind": "report"}
        assert (prices.name, prices.when, prices.catch_up) == ("prices", Every(60), 1)
        assert prices.arguments == {"priority": 5, "max_age_seconds": 30}

    @pytest.mark.usefixtures("folder")
    def test_a_module(self) -> None:
        assert [(each.name, each.when) for each in load_schedules("schedules_here:schedules")] == [
            ("poll", Every(60))
        ]

    @pytest.mark.usefixtures("folder")
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("schedules_here", "schedules: 'schedules_here' is not of the form 'module:list', such as"),
            ("no_such_module:schedules", "'no_such_module' cannot be imported (No module named"),
            ("schedules_here:schedule", "has no list 'schedule'; is it 'schedules'?"),
            ("schedules_here:number", "'schedules_here:number' is a int; make it a list of Schedule"),
            ("schedules_here:mixed", "number 2 of 'schedules_here:mixed' is a str; use Schedule.of(...)"),
            ("schedules_here:empty", "'schedules_here:empty' has none; add one"),
            ("wrong_schedules_here:schedules", "wrong_schedules_here.py, line 4: ValueError: catch_up: "),
            ("none.toml", "'none.toml' cannot be read (No such file or directory)"),
        ],
    )
    def test_a_wrong_source_is_one_line(self, source: str, message: str) -> None:
        with refused("schedules") as caught:
            load_schedules(source)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("name = ", "not TOML (Invalid value (at end of document))"),
            ("[poll]", "poll: unknown; a file has only tables named [[schedule]]"),
            ("schedule = 7", "schedule: unknown; a file has only tables named [[schedule]]"),
            ("schedule = [7]", "schedule: unknown; a file has only tables named [[schedule]]"),
            ("[[schedule]]\npayload = 1\nevery_seconds = 1", "schedule number 1: name: missing"),
            ("[[schedule]]\nname = 'a'\nevery_seconds = 1", "schedule 'a': payload: missing"),
            ("[[schedule]]\nname = 7\nevery_seconds = 1\npayload = 1", "schedule number 1: name: must be a"),
            ("*", "schedule 'a': cron, every_seconds: give one of them"),
            ("*cron = '* * * * *'\nevery_seconds = 1", "schedule 'a': cron, every_seconds: give one of them"),
            ("*every_seconds = 1\nzone = 'UTC'", "schedule 'a': zone: only for cron; leave it out"),
            (
                "*every_seconds = 0",
                "schedule 'a': every_seconds: must be a number of seconds, greater than 0",
            ),
            (
                "*cron = '61 * * * *'",
                "schedule 'a': cron: '61 * * * *' is not a cron expression (Bad minute)",
            ),
            ("*cron = '* * * * *'\nzone = 'Berlin'", "schedule 'a': zone: 'Berlin' is not a time zone"),
            ("*every_seconds = 1\nevery = 2", "schedule 'a': every: unknown field; use one of name, payload"),
            ("*every_seconds = 1\npriority = 12", "schedule 'a': priority: input should be less than or"),
            ("*every_seconds = 1\ncatch_up = 0", "schedule 'a': catch_up: must be a whole number from 1"),
            (
                "[[schedule]]\nname = 'a'\npayload = nan\nevery_seconds = 1",
                "schedule 'a': payload: ",
            ),
        ],
    )
    def test_a_wrong_file_names_the_schedule_and_the_field(
        self, folder: Path, text: str, message: str
    ) -> None:
        head = "[[schedule]]\nname = 'a'\npayload = 1\n"
        (folder / "wrong.toml").write_text(head + text[1:] if text.startswith("*") else text)
        with refused("wrong.toml") as caught:
            load_schedules("wrong.toml")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def session(clock: Clock, *, as_json: bool = False) -> Session:
    return Session(Queue.memory(clock=clock), Output(as_json=as_json))


def poll(payload: object = 1, name: str = "poll") -> Schedule:
    return Schedule.of(name, Every(60), payload)


def events(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


class TestDryRun:
    def test_it_shows_the_ticks_of_all_schedules_in_order_and_puts_nothing(
        self, clock: Clock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        here = session(clock, as_json=True)
        nightly = Schedule.of("nightly", Cron("*/1 * * * *", "Europe/Berlin"), 1)
        show_next(here, [poll(), nightly], 3)
        shown = json.loads(capsys.readouterr().out)
        assert [tick["schedule"] for tick in shown] == ["poll", "nightly", "poll"]
        assert shown[0]["tick"] == shown[1]["tick"] == shown[2]["tick"] - 60
        assert START < shown[0]["tick"] <= START + 60
        assert shown[1]["at"].endswith(("+01:00", "+02:00"))
        assert shown[0]["task_id"] == poll().task_id(shown[0]["tick"])
        assert here.queue.stats().pending == 0
        assert core_of(here.queue).store.read_record(here.queue.name, poll().record_name) is None

    def test_it_shows_the_next_tick_of_every_schedule(
        self, clock: Clock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rare = [Schedule.of(name, Cron(f"0 0 1 {month} *"), 1) for name, month in (("may", 5), ("june", 6))]
        show_next(session(clock, as_json=True), [*rare, poll()], 3)
        shown = [tick["schedule"] for tick in json.loads(capsys.readouterr().out)]
        assert shown[:3] == ["poll"] * 3
        assert sorted(shown[3:]) == ["june", "may"]

    def test_people_read_a_line_for_each(self, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
        show_next(session(clock), [poll()], 2)
        first, second = capsys.readouterr().out.splitlines()
        assert first.endswith(poll().task_id(next(poll().when.ticks(START))))
        assert "  in " in second

    def test_a_name_given_twice_is_refused(self, clock: Clock) -> None:
        with refused("schedules"):
            show_next(session(clock), [poll(), poll()], 2)


class TestOnce:
    def test_each_tick_fires_once_on_however_many_nodes(
        self, clock: Clock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        here = session(clock)
        fire_once(here, [poll()])  # a new schedule starts now
        clock.advance(60)
        for _node in range(2):
            fire_once(here, [poll()])
        printed = events(capsys.readouterr().out)
        assert [each["fired"] for each in printed if each["event"] == "ended"] == [0, 1, 0]
        (fired,) = [each for each in printed if each["event"] == "fired"]
        assert (fired["schedule"], fired["outcome"]) == ("poll", "CREATED")
        assert [task.task_id for task in here.queue.list()] == [fired["task_id"]]

    def test_what_a_payload_function_raises_is_one_line_after_the_turn_of_the_others(
        self, clock: Clock, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        here = session(clock)
        schedules = [poll(lambda _instant: 1 / 0, "fails"), poll()]
        fire_once(here, schedules)
        clock.advance(60)
        with pytest.raises(RefusedError):
            fire_once(here, schedules)
        printed = events(capsys.readouterr().out)
        assert [each["schedule"] for each in printed if each["event"] == "fired"] == ["poll"]
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert printed[-1]["exit_status"] == 1


def test_an_attached_table_is_refused() -> None:
    queue = AttachedQueue(cast("AttachedStore", MemoryStore()))  # it is not used
    with refused("queue"):
        fire_once(Session(queue, Output(as_json=True)), [poll()])


class TestEnd:
    def told(
        self, here: Session, schedules: list[Schedule], control: ControlChannel
    ) -> tuple[ExitStatus, list[str]]:
        stream = io.StringIO()
        status = _fire_until_told(Scheduler(here.queue, schedules), control, JsonLines(stream, 0))
        return status, [each["event"] for each in events(stream.getvalue())]

    def test_one_signal_lets_the_put_end(self, clock: Clock) -> None:
        here, control, release = session(clock), ControlChannel(), threading.Event()

        def payload(_instant: object) -> str:
            control.send(ControlMessage.SIGNAL)
            release.wait(PATIENCE_SECONDS)
            return "done"

        class Released(ControlChannel):
            def receive(self, timeout_seconds: float) -> Any:
                stage = control.receive(timeout_seconds)
                if stage:
                    release.set()
                return stage

            def send(self, message: ControlMessage) -> None:
                control.send(message)

        fire_once(here, [poll()])
        clock.advance(60)
        status, told = self.told(here, [poll(payload)], Released())
        assert (status, told) == (ExitStatus.DONE, ["draining", "ended"])
        assert [task.payload for task in here.queue.list()] == ["done"]

    def test_a_second_signal_does_not_wait(self, clock: Clock) -> None:
        here, control, release = session(clock), ControlChannel(), threading.Event()

        def payload(_instant: object) -> None:
            control.send(ControlMessage.SIGNAL)
            control.send(ControlMessage.SIGNAL)
            release.wait(PATIENCE_SECONDS)

        fire_once(here, [poll()])
        clock.advance(60)
        status, told = self.told(here, [poll(payload)], control)
        release.set()
        assert (status, told[-1]) == (ExitStatus.UNFINISHED, "ended")


def test_on_a_terminal_events_are_lines_for_people() -> None:
    stream = io.StringIO()
    lines = EventLines(Console(file=stream, force_terminal=True, color_system=None, width=100))
    lines.event("fired", schedule="poll", outcome="CREATED")
    lines.status([])
    lines.close()
    assert stream.getvalue().rstrip().endswith("fired  schedule poll  outcome CREATED")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--queue", "memory://"], 2, "queue: memory:// is in one process"),
        (["--queue", "memory://", "--once", "--dry-run"], 2, "once, dry_run: give one of them"),
        (["--queue", "sqlite:///file:empty?mode=memory&uri=true"], 3, "table 'tasks': its table 'tasks_rec"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_fires(
    arguments: list[str], status: int, message: str
) -> None:
    answer = CliRunner().invoke(app, ["schedule", "schedules_here:schedules", *arguments])
    assert (answer.exit_code, answer.stderr.count("\n")) == (status, 1)
    assert answer.stderr.startswith(f"freshq: {message}")


def test_a_process_starts_the_schedules_and_ends_with_a_signal(folder: Path) -> None:
    queue = Queue.sql("sqlite:///tasks.db")
    queue.create_table()
    shutil.copy(EXAMPLE, folder)
    command = [sys.executable, "-P", "-m", "freshq.cli", "schedule", "schedules.toml"]
    with subprocess.Popen(
        [*command, "--queue", "sqlite:///tasks.db"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        others = events(process.stdout.read())
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (started["event"], started["schedules"]) == ("started", ["report", "prices"])
    assert [each["event"] for each in others if each["event"] != "fired"] == ["draining", "ended"]
    queue.close()
