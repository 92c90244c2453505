"""Dead letters found, understood and redriven by their cause: filters, and `freshq dlq top`."""

import json
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from freshq import Queue, TaskStatus
from freshq.cli.commands.tasks import Selection, causes, masked, selected_page
from freshq.cli.main import app
from freshq.testing import make_task
from tests.conftest import Clock
from tests.support.refusals import refused

CAUSES: Final = {
    ("quote", "KeyError: order 17 of 4711"): 200,
    ("quote", "TimeoutError: no answer after 2.5 s"): 100,
    ("mail", "ValueError: user 7d4e5f6a-1b2c-4d3e-8f90-123456789abc is unknown"): 50,
    ("mail", "TimeoutError: no answer after 31 s"): 24,
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a queue with 374 dead letters of four causes, and ten tasks that wait."""
    file = tmp_path_factory.mktemp("filled") / "tasks.db"
    clock = Clock(1_800_000_000.0)
    with Queue.sql(f"sqlite:///{file}", max_age_seconds=None, clock=clock) as queue:
        queue.create_table()
        for (kind, error), count in CAUSES.items():
            queue.put_many([{"payload": n, "kind": kind, "group": f"g{n % 2}"} for n in range(count)])
            for claim in queue.claim(count):
                queue.fail(claim, error=error.replace("17", str(claim.task.payload)))
            clock.advance(3600)
        queue.put_many([{"payload": n, "kind": ("quote", "mail")[n % 2]} for n in range(10)])
    return file


@pytest.fixture
def address(filled: Path, tmp_path: Path) -> str:
    """Return the address of a copy of the filled queue."""
    return f"sqlite:///{copyfile(filled, tmp_path / 'tasks.db')}"


def answer(address: str, *words: str) -> Any:
    run = CliRunner().invoke(app, [*words, "--queue", address, "--json"])
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


def test_ids_and_numbers_are_masked() -> None:
    assert masked("KeyError: 'order-17'") == "KeyError: 'order-<n>'"
    assert masked("no row 12,345.6 at 10:30") == "no row <n> at <n>"
    assert masked("user 7d4e5f6a-1b2c-4d3e-8f90-123456789abc, blob 0x7f3a9c001122") == "user <id>, blob <id>"
    assert masked("key 01ARZ3NDEKTSV4RRFFQ69G5FAV of commitments") == "key <id> of commitments"
    assert masked(None) == "no error"


def test_top_groups_by_error_and_kind(address: str) -> None:
    groups = answer(address, "dlq", "top")["groups"]
    assert [(group["kind"], group["error"], group["count"]) for group in groups] == [
        ("quote", "KeyError: order <n> of <n>", 200),
        ("quote", "TimeoutError: no answer after <n> s", 100),
        ("mail", "ValueError: user <id> is unknown", 50),
        ("mail", "TimeoutError: no answer after <n> s", 24),
    ]
    assert groups[0].keys() == {"error", "kind", "count", "first_at", "last_at"}
    assert groups[0]["first_at"] <= groups[0]["last_at"] < groups[1]["first_at"]
    shown = CliRunner().invoke(app, ["dlq", "top", "--queue", address]).stdout
    assert "KeyError: order <n> of <n>" in shown
    assert len(answer(address, "dlq", "top", "--kind", "mail", "--limit", "1")["groups"]) == 1


def test_each_cause_is_redriven_alone(address: str) -> None:
    words = ("dlq", "redrive", "--error", "TimeoutError: no answer after <n> s", "--kind", "quote", "--yes")
    assert answer(address, *words) == {"redriven": 100}
    assert answer(address, "dlq", "restore", "--error", "is unknown", "--group", "g1", "--yes") == {
        "redriven": 25
    }
    assert answer(address, "dlq", "purge", "--error", "after 31 s", "--yes") == {"deleted": 24}
    left = {(group["kind"], group["count"]) for group in answer(address, "dlq", "top")["groups"]}
    assert left == {("quote", 200), ("mail", 25)}


def test_lists_are_filtered_page_by_page(address: str) -> None:
    words = ("dlq", "ls", "--error", "after <n> s", "--kind", "mail", "--limit", "10")
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        page = answer(address, *words, *cursor)
        seen += [task["task_id"] for task in page["tasks"]]
        assert len(page["tasks"]) <= 10
        if page["cursor"] is None:
            break
        cursor = ["--cursor", page["cursor"]]
    assert len(seen) == len(set(seen)) == 24
    waiting = answer(address, "ls", "--status", "pending", "--kind", "mail")["tasks"]
    assert {task["payload"] for task in waiting} == {1, 3, 5, 7, 9}


def test_since_is_a_span_or_a_time(address: str) -> None:
    with Queue.sql(address, max_age_seconds=None, clock=Clock(1_800_014_400.0)) as queue:
        ages = {"1h": 24, "2.5h": 74, "9000": 74, "1d": 374, "2027-01-15T08:00:00Z": 374}
        for since, count in ages.items():
            selection = Selection.of(queue, None, None, None, since)
            tasks, cursor = selected_page(queue, "FAILURE", selection.predicate, 500, None)
            assert (len(tasks), cursor) == (count, None)
        with refused("since"):
            Selection.of(queue, None, None, None, "yesterday")


def test_waiting_tasks_are_cancelled_by_kind(address: str) -> None:
    cancelled = answer(address, "cancel", "--kind", "mail", "--yes")
    assert {task["status"] for task in cancelled} == {"CANCELLED"}
    assert len(cancelled) == 5
    assert answer(address, "cancel", "--kind", "mail", "--yes") == []
    dead = answer(address, "cancel", "--kind", "quote", "--dead", "--error", "not now", "--yes")
    assert {task["error"] for task in dead} == {"not now"}


@pytest.mark.parametrize("verb", [("cancel",), ("redrive",), ("purge",)])
def test_ids_and_filters_exclude_each_other(address: str, verb: tuple[str, ...]) -> None:
    run = CliRunner().invoke(app, [*verb, "some-id", "--kind", "mail", "--queue", address, "--yes"])
    assert run.exit_code != 0
    assert "not with task_ids" in run.output


def test_top_is_for_dead_letters(address: str) -> None:
    run = CliRunner().invoke(app, ["list", "--top", "--queue", address])
    assert run.exit_code != 0


def test_verbs_select_by_a_function(address: str) -> None:
    with Queue.sql(address, max_age_seconds=None) as queue:
        assert queue.redrive(where=lambda task: task.payload == 0) == 4
        assert queue.purge(status="PENDING", where=lambda task: task.payload == 0, confirm="default") == 5
        verbs: list[Any] = [queue.redrive, partial(queue.purge, confirm="default")]
        for verb in verbs:
            with refused("where"):
                verb(where="x")
            with refused("where"):
                verb(where=bool, task_ids=["a"])


def test_causes_of_no_tasks_and_of_tasks_without_an_error() -> None:
    assert causes([]) == []
    (cause,) = causes([make_task(1, status=TaskStatus.FAILURE, updated=5.0)])
    assert (cause.error, cause.kind, cause.count, cause.first_at) == ("no error", None, 1, 5.0)
