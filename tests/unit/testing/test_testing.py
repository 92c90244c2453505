"""Help for the tests of applications, and the page that shows it."""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import freshq.testing
from freshq import AsyncQueue, Busy, Queue, Retry, Task, TaskStatus
from freshq.errors import Unreachable
from freshq.telemetry import Outcome
from freshq.testing import FaultyStore, ManualClock, assert_nothing_put, assert_put, drain, make_task
from tests.support.programs import python
from tests.support.refusals import refused


@dataclass
class Size:
    amount: Decimal
    sides: tuple[int, int]


PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert [name for name, _code in blocks] == ["quotes.py", "test_quotes.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code, "utf-8")
    run = subprocess.run(
        [*PYTEST, "-p", "freshq.testing.plugin", "-W", "error", "test_quotes.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "7 passed" in run.stdout


class TestPlugin:
    def test_pytest_finds_it_by_a_name_that_is_also_its_module(self) -> None:
        project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
        assert project["entry-points"]["pytest11"] == {"freshq.testing.plugin": "freshq.testing.plugin"}

    def test_it_loads_nothing_that_pytest_does_not_have(self) -> None:
        program = (
            "import pytest, sys; before = set(sys.modules); import freshq.testing.plugin; "
            "print(sorted(set(sys.modules) - before - sys.stdlib_module_names))"
        )
        run = python("-c", program)
        assert (
            run.stdout.strip() == "['freshq', 'freshq._exports', 'freshq.testing', 'freshq.testing.plugin']"
        )

    @pytest.mark.parametrize(
        ("options", "conftest", "passed"),
        [
            (["-p", "freshq.testing.plugin"], 'pytest_plugins = ["freshq.testing.plugin"]', "2 passed"),
            (["-p", "no:freshq.testing.plugin"], "", "1 passed, 1 error"),
        ],
    )
    def test_it_may_be_named_again_and_left_out(
        self, tmp_path: Path, options: list[str], conftest: str, passed: str
    ) -> None:
        (tmp_path / "conftest.py").write_text(conftest, "utf-8")
        code = "def test_a(): pass\ndef test_b(freshq_queue): assert freshq_queue.claim() == []\n"
        (tmp_path / "test_it.py").write_text(code, "utf-8")
        run = subprocess.run([*PYTEST, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert passed in run.stdout, run.stdout + run.stderr

    def test_a_name_that_freshq_testing_lacks_is_an_attribute_error(self) -> None:
        assert not hasattr(freshq.testing, "no_such_name")


def test_a_clock_moves_only_forward() -> None:
    clock = ManualClock(100.0)
    clock.advance(2.5)
    assert clock() == 102.5
    with refused("seconds"):
        clock.advance(-1)


class TestDrain:
    def test_it_runs_newest_first_and_what_the_runner_puts(self) -> None:
        clock = ManualClock()
        queue = Queue.memory(clock=clock)
        for name in ("first", "second"):
            queue.put(name)
            clock.advance(1)

        def run(task: Task) -> None:
            if task.payload == "second":
                queue.put("third")

        assert [fate.task.payload for fate in drain(queue, run)] == ["second", "third", "first"]

    def test_it_runs_the_tasks_of_an_async_queue(self) -> None:
        queue = AsyncQueue.memory(clock=ManualClock())
        queue.queue.put("work")
        assert [fate.task.payload for fate in drain(queue, str)] == ["work"]

    def test_it_stops_when_the_runner_is_busy(self) -> None:
        queue = Queue.memory(clock=ManualClock())
        queue.put("work")

        def run(_task: Task) -> None:
            raise Busy("full")

        (fate,) = drain(queue, run)
        assert (fate.outcome, fate.task.status) == (Outcome.RELEASED, TaskStatus.PENDING)

    def test_a_runner_that_always_fails_ends_in_a_dead_letter(self) -> None:
        queue = Queue.memory(clock=ManualClock(), max_attempts=3)
        queue.put("work")

        def run(_task: Task) -> None:
            raise Retry("again", delay_seconds=0)

        assert [fate.outcome for fate in drain(queue, run)] == [
            Outcome.RETRIED,
            Outcome.RETRIED,
            Outcome.FAILED,
        ]

    def test_a_runner_without_an_end_is_named_and_its_task_is_kept(self) -> None:
        queue = Queue.memory(clock=ManualClock())
        queue.put(0)
        with pytest.raises(AssertionError):
            drain(queue, lambda task: queue.put(task.payload + 1).task_id, max_runs=3)
        assert_put(queue, payload=3, status=TaskStatus.PENDING)

    def test_an_expired_lease_is_run_again(self) -> None:
        clock = ManualClock()
        queue = Queue.memory(clock=clock, lease_seconds=5)
        queue.put("work")
        queue.claim()
        clock.advance(6)
        (fate,) = drain(queue, lambda _task: None)
        assert fate.task.attempts == 2

    def test_a_lease_that_the_runner_lost_is_a_fate(self) -> None:
        clock = ManualClock()
        queue = Queue.memory(clock=clock, lease_seconds=30)
        queue.put("work")

        def run(task: Task) -> None:
            if task.attempts == 1:
                clock.advance(31)
                queue.admin.recover()

        lost, done = drain(queue, run)
        assert (lost.outcome, done.outcome) == (Outcome.LEASE_LOST, Outcome.SUCCEEDED)
        assert "the claim no longer holds it" in (lost.error or "")


class TestTasks:
    def test_payloads_are_compared_as_they_were_put(self) -> None:
        queue = Queue.memory()
        queue.put({"of": Size(Decimal("1.5"), (1, 2))})
        stored = {"of": {"amount": "1.5", "sides": [1, 2]}}
        assert assert_put(queue, payload={"of": Size(Decimal("1.5"), (1, 2))}).payload == stored
        assert make_task({"of": Size(Decimal("1.5"), (1, 2))}).payload == stored
        assert_put(queue, payload=mock.ANY)
        with refused("payload"):
            make_task({1, 2})

    def test_a_made_task_takes_attributes(self) -> None:
        task = make_task({"a": 1}, group="desk", attempts=4, created=1000.0)
        assert (task.payload, task.group, task.attempts, task.status) == (
            {"a": 1},
            "desk",
            4,
            TaskStatus.TAKEN,
        )
        assert task.created < task.lease_until < task.deadline  # type: ignore[operator]  # it has a lease

    @pytest.mark.parametrize("function", [make_task, lambda **values: assert_put(Queue.memory(), **values)])
    def test_an_unknown_attribute_is_named(self, function: Any) -> None:
        with refused("colour"):
            function(colour="red")

    def test_what_is_missing_is_shown_beside_what_there_is(self) -> None:
        queue = Queue.memory()
        with pytest.raises(AssertionError, match=r"\{'group': 'a'\} was put; the queue has no task"):
            assert_put(queue, group="a")
        queue.put("work", group="b")
        with pytest.raises(AssertionError, match=r"the queue has \{'group': 'b'\}"):
            assert_put(queue, group="a")
        with pytest.raises(AssertionError, match="'payload': 'work'"):
            assert_nothing_put(queue)


class TestFaultyStore:
    def test_calls_fail_as_often_as_told(self) -> None:
        store = FaultyStore()
        queue = store.queue(clock=ManualClock())
        queue.put("work", task_id="a")
        store.fail_next(2)
        for _ in range(2):
            with pytest.raises(Unreachable):
                queue.get("a")
        assert queue.get("a") is not None

    def test_a_lost_reply_leaves_what_was_written(self) -> None:
        store = FaultyStore()
        queue = store.queue(clock=ManualClock())
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        store.lose_replies()
        with pytest.raises(Unreachable):
            queue.complete(claim)
        assert_put(queue, task_id="a", status=TaskStatus.SUCCESS)
