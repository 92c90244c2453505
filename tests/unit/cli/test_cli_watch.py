"""`freshq watch`: snapshots, and frames of any size."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest
from rich.console import Console
from typer.testing import CliRunner

from freshq import Queue
from freshq.cli.commands.watch import (
    AGES_SECONDS,
    MAX_DEAD_LETTERS,
    TASKS_EVERY_SECONDS,
    Snapshot,
    Watcher,
    bands,
    draw,
    frame,
)
from freshq.cli.main import app
from freshq.cli.output import forecast_lines
from freshq.errors import Throttled
from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate.forecast import Moment, forecast
from tests.conftest import Clock, StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS

# The command runs in a separate process, which imports everything and draws in real time.
FRAME_SECONDS: Final = 3 * PATIENCE_SECONDS


def filled(queue: Queue, clock: Clock) -> None:
    """Put tasks of several ages; some are claimed, done or dead letters."""
    queue.put_many([{"payload": number} for number in range(3)])
    clock.advance(100)
    queue.put_many([{"payload": number} for number in range(10)])
    held = queue.claim(limit=3)
    queue.complete(held[0])
    queue.fail(held[1], error="the downstream said 503")
    clock.advance(5)
    queue.put("new")


def drawn(snapshot: Snapshot, width: int, height: int, problem: str | None = None) -> str:
    console = Console(width=width, height=height, file=io.StringIO())
    with console.capture() as capture:
        console.print(frame(snapshot, width, height, problem))
    return capture.get()


class TestSnapshots:
    def test_waiting_tasks_are_counted_by_age(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        filled(queue, store.clock)
        snapshot = Watcher(queue).snapshot()
        assert (snapshot.stats.pending, snapshot.paused) == (11, False)
        assert snapshot.stats.taken >= 1
        assert bands(snapshot.backlog) == [(0.0, 1.0, 1), (1.0, 10.0, 7), (10.0, 60.0, 0), (60.0, 300.0, 3)]
        assert [task.error for task in snapshot.dead_letters] == ["the downstream said 503"]
        assert snapshot.pressure.offered_per_second > 0

    def test_nothing_waits(self, queue: Queue) -> None:
        snapshot = Watcher(queue).snapshot()
        assert (snapshot.backlog, snapshot.dead_letters) == ((), ())

    def test_tasks_in_work_that_report_progress_are_shown_where_there_is_room(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock)
        queue.put_many([{"payload": number, "task_id": f"t{number}"} for number in range(3)])
        for claim, fraction in zip(queue.claim(limit=2), (0.29, 1), strict=True):
            queue.extend(claim, lease_seconds=60, progress=fraction, step="loading")
        queue.claim()
        clock.advance(3)
        snapshot = Watcher(queue).snapshot()
        assert [task.task_id for task in snapshot.in_work] == ["t1", "t2"]
        assert snapshot.as_json()["in_work"][0]["progress_fraction"] == 1
        lines = drawn(snapshot, 80, 30).splitlines()
        (place,) = [place for place, line in enumerate(lines) if line.startswith("in work: time held")]
        assert [line.split() for line in lines[place + 1 : place + 3]] == [
            ["t1", "3.0", "s", "100%,", "loading"],
            ["t2", "3.0", "s", "29%,", "loading"],
        ]
        assert "loading" not in drawn(snapshot, 80, 10)

    def test_tasks_older_than_every_age_are_counted(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, max_age_seconds=100_000)
        queue.put("old")
        clock.advance(AGES_SECONDS[-1] + 1)
        snapshot = Watcher(queue).snapshot()
        assert bands(snapshot.backlog)[-1][::2] == (AGES_SECONDS[-1], 1)
        shown = json.loads(json.dumps(snapshot.as_json(), allow_nan=False))
        assert shown["backlog"][-1] == {"younger_than_seconds": None, "tasks": 1}

    def test_the_claim_rate_is_estimated_from_held_and_settled_tasks(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock)
        queue.put_many([{"payload": number} for number in range(20)])
        watcher = Watcher(queue)
        assert watcher.snapshot().claimed_per_second is None
        queue.claim(limit=8)
        clock.advance(4)
        assert watcher.snapshot().claimed_per_second == pytest.approx(2.0)
        clock.advance(30)
        watcher.snapshot()
        clock.advance(1)
        assert watcher.snapshot().claimed_per_second == pytest.approx(0.0)

    def test_the_last_dead_letters_are_read_every_few_seconds(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock)
        watcher = Watcher(queue)
        for number in range(MAX_DEAD_LETTERS + 3):
            queue.put(number, task_id=f"t{number}")
            queue.fail(queue.claim()[0])
            clock.advance(0.001)
        assert [task.payload for task in watcher.snapshot().dead_letters] == [*range(52, 2, -1)]
        queue.purge(status="FAILURE", confirm=queue.name)
        assert len(watcher.snapshot().dead_letters) == MAX_DEAD_LETTERS
        clock.advance(TASKS_EVERY_SECONDS)
        assert watcher.snapshot().dead_letters == ()


class TestForecast:
    def test_an_overloaded_queue_is_told_what_comes_and_what_would_help(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, max_age_seconds=60)
        watcher = Watcher(queue)
        for _ in range(120):
            queue.put_many([{"payload": number} for number in range(6)])
            held = queue.claim(limit=2)
            clock.advance(1)
            for claim in held:
                queue.complete(claim)
        queue.claim(limit=2)
        found = watcher.snapshot()
        assert found.forecast is not None
        assert found.forecast.slots == 2
        assert found.forecast.in_time_ratio.low < 1 / 3 < found.forecast.in_time_ratio.high
        text = drawn(found, 100, 40)
        (share,) = re.findall(r"in time +(\S+)", text)[:1]
        assert f"put next     {share} (" in text, "the figure and the forecast disagree"
        for said in ("forecast, 90% interval", "put next", "waiting now", "more slots ("):
            assert said in text, said
        assert json.loads(json.dumps(found.as_json()))["forecast"]["more_slots"]["median"] >= 4
        assert "forecast" not in drawn(found, 100, 10), "no room"
        queue.pause()
        assert watcher.snapshot().forecast is None

    def test_a_queue_that_keeps_up_needs_nothing(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, max_age_seconds=60)
        for number in range(30):
            queue.put(number)
            clock.advance(0.01)
            queue.complete(queue.claim()[0])
            clock.advance(1)
        assert Watcher(Queue.memory(clock=clock)).snapshot().forecast is None, "no task was done"
        lines = forecast_lines(Watcher(queue).snapshot().forecast)
        assert lines == {"put next": "100% (100 to 100) in time", "would help": "nothing needed"}
        late = Moment(9.0, 3.0, 30.0, 1.0, 3, 3, [0.2 * number for number in range(150)])
        lines = forecast_lines(forecast(late, OverloadRules(30.0, Order.FIFO)))
        assert "; order lifo, " in lines["would help"]


class TestFrame:
    @pytest.mark.parametrize(("width", "height"), [(30, 26), (50, 20), (80, 24), (120, 40)])
    def test_it_fits_any_width(self, clock: Clock, width: int, height: int) -> None:
        queue = Queue.memory(clock=clock)
        filled(queue, clock)
        lines = drawn(Watcher(queue).snapshot(), width, height).splitlines()
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        for said in ("queue default", "put", "claimed", "waiting", "in work", "below 10 s", "last dead"):
            assert said in text, said

    @pytest.mark.parametrize("width", [24, 40, 80, 120])
    def test_it_fits_any_height(self, clock: Clock, width: int) -> None:
        queue = Queue.memory(clock=clock, max_age_seconds=100_000)
        queue.put("oldest")
        clock.advance(5000)
        filled(queue, clock)
        for number in range(30):
            queue.put("fails", task_id=f"dead-{number}")
            queue.fail(queue.claim()[0], error="the downstream said 503\nand more")
        full = Watcher(queue).snapshot()
        for snapshot in (full, replace(full, dead_letters=()), replace(full, backlog=())):
            for height in (*range(1, 14), 20, 39):
                lines = drawn(snapshot, width, height, problem="throttled").splitlines()
                assert len(lines) <= height
                assert max(map(len, lines)) <= width
                assert lines[0].startswith("queue default")

    def test_a_small_terminal_shows_the_most_important_first(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock)
        filled(queue, clock)
        snapshot = Watcher(queue).snapshot()
        twelve, five, two = (drawn(snapshot, 80, height).splitlines() for height in (12, 5, 2))
        assert twelve[1].startswith("waiting 11  in work ")
        assert [line.split("  ")[1] for line in twelve if "below" in line] == [
            "below 1.0 s", "below 10 s", "below 1 min", "below 5 min",
        ]  # fmt: skip
        assert twelve[-2] == "last dead letters"
        assert "the downstream said 503" in twelve[-1]
        assert five[1] == twelve[1]
        assert not any("below" in line for line in five)
        assert "the downstream said 503" in five[-1]
        assert [line[:10] for line in two] == ["queue defa", "waiting 11"]

    def test_a_tall_terminal_shows_everything(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock)
        filled(queue, clock)
        queue.pause()
        snapshot = Watcher(queue).snapshot()
        text = drawn(snapshot, 120, 40, problem="table 'Tasks': throttled")
        for said in (
            "the downstream said 503",
            "paused",
            "not updated: table 'Tasks'",
            "1 min 45 s",
        ):
            assert said in text, said
        assert "last dead letters  none" in drawn(replace(snapshot, dead_letters=()), 80, 24)


class TestCommand:
    def test_one_frame_and_one_line_of_json(self) -> None:
        picture = CliRunner().invoke(app, ["watch", "--once", "--queue", "memory://"])
        assert picture.exit_code == 0
        assert "queue default" in picture.stdout
        shown = CliRunner().invoke(app, ["watch", "--once", "--json", "--queue", "memory://"])
        assert json.loads(shown.stdout)["stats"]["pending"] == 0

    @pytest.mark.parametrize(
        ("arguments", "said"), [([], "once: "), (["--every-seconds", "0"], "every_seconds: ")]
    )
    def test_wrong_use(self, arguments: list[str], said: str) -> None:
        done = CliRunner().invoke(app, ["watch", "--queue", "memory://", *arguments])
        assert (done.exit_code, said in done.stderr) == (2, True)

    @pytest.mark.usefixtures("account_client")
    def test_a_store_error_at_first_is_an_error(self) -> None:
        done = CliRunner().invoke(app, ["watch", "--once", "--queue", "dynamodb://Nowhere"])
        assert (done.exit_code, "'Nowhere'" in done.stderr) == (3, True)

    def test_a_later_store_error_is_shown_in_the_last_frame(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = Queue.memory(clock=clock)
        snapshot = Watcher(queue).snapshot()
        answers: Iterator[Snapshot | BaseException] = iter(
            [snapshot, Throttled("too many"), snapshot, KeyboardInterrupt()]
        )

        def next_answer(_: Watcher) -> Snapshot:
            answer = next(answers)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        shown: list[str | None] = []
        monkeypatch.setattr(Watcher, "snapshot", next_answer)

        def picture(*arguments: str | None) -> str:
            shown.append(arguments[3])
            return "a picture"

        monkeypatch.setattr("freshq.cli.commands.watch.frame", picture)
        console = Console(force_terminal=True, width=80, height=24, file=sys.stdout)
        with pytest.raises(KeyboardInterrupt):
            draw(console, Watcher(queue), every_seconds=0.001)
        assert shown == [None, "too many", None]

    def test_a_terminal_that_cannot_be_redrawn_is_refused(self) -> None:
        done = CliRunner().invoke(
            app, ["watch", "--queue", "memory://"], env={"TERM": "dumb", "FORCE_COLOR": "1"}
        )
        assert done.exit_code == 2
        assert "the output is not a terminal that can be redrawn; add --once or --json" in done.output

    @pytest.mark.timeout(3 * FRAME_SECONDS)
    def test_it_fits_a_small_terminal_and_ctrl_c_ends_it_with_status_0(self) -> None:
        terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 40, 0, 0))
        code = "from freshq.cli.main import app; app()"
        command = [sys.executable, "-c", code, "watch", "--queue", "memory://", "--every-seconds", "0.05"]
        environment = os.environ | {"TERM": "xterm"}
        with subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
        ) as process:
            os.close(inside)
            shown = _until(terminal, b"in time")
            process.send_signal(signal.SIGINT)
            _until(terminal, None)
            assert process.wait(FRAME_SECONDS) == 0
        os.close(terminal)
        assert b"queue default" in shown


def _until(terminal: int, sign: bytes | None) -> bytes:
    """Return the output of a terminal up to a sign; None for all of it until it is closed."""
    shown = b""
    deadline = time.monotonic() + FRAME_SECONDS
    with suppress(OSError):  # raised when the process of the terminal has ended
        while sign is None or sign not in shown:
            readable, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, shown
            part = os.read(terminal, 65536)
            if not part:
                break
            shown += part
    return shown
