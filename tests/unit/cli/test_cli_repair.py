"""The commands that repair a queue by id: bury, restore, cancel --force; and dequeue."""

import json
import re
from datetime import UTC, datetime

import pytest

from freshq import Queue, TaskStatus
from tests.support.readings import counts, known
from tests.support.table_clock import Ahead
from tests.unit.cli.test_cli_verbs import URL, answer, claimed, fails, freshq, in_dynamodb, queue

__all__ = ["in_dynamodb", "queue"]  # the fixtures


def put(*task_ids: str) -> None:
    for task_id in task_ids:
        answer("put", json.dumps(f"work of {task_id}"), "--task-id", task_id)


def test_a_waiting_task_is_buried_with_a_reason_and_restored(queue: Queue) -> None:
    put("a", "b")
    assert answer("cancel", "--dead", "a", "--error", "wrong address")["error"] == "wrong address"
    assert [task["task_id"] for task in answer("list", "--status", "FAILURE")["tasks"]] == ["a"]
    assert answer("restore", "a") == {"redriven": 1}
    assert claimed()[0] == "a"  # it is the newest now
    assert counts(queue.stats()) == {"pending": 1, "taken": 1}


def test_several_at_a_time_need_confirmation(queue: Queue) -> None:
    put("a", "b", "c")
    fails(2, "pass --yes", "cancel", "--dead", "a", "b")
    for words in (["redrive"], ["dlq", "redrive"], ["dlq", "restore"]):
        fails(2, "pass --all", *words)
        fails(2, "pass --yes", *words, "--all")
        fails(2, "pass --yes", *words, "--limit", "2")
        fails(2, "pass --yes", *words, "a", "b")
        fails(2, "--all: not with task_ids", *words, "--all", "a", "--yes")
    done = freshq("cancel", "--dead", "a", "nobody", "b", "--error", "no stock", "--yes")
    assert (done.exit_code, done.stdout) == (1, "task a: FAILURE\ntask b: FAILURE\n")
    assert done.stderr == "freshq: task 'nobody': not in queue 'default'; check the id and the queue's name\n"
    assert answer("restore", "a", "b", "--yes") == {"redriven": 2}
    assert counts(queue.stats()) == {"pending": 3}


def test_force_takes_a_task_from_its_holder(queue: Queue) -> None:
    put("a")
    _, token = claimed()
    for arguments in (["cancel"], ["cancel", "--dead"], ["redrive", "--as-new"]):
        fails(1, "a task that is TAKEN; ", *arguments, "a")
    assert answer("cancel", "a", "--force")["status"] == "CANCELLED"
    fails(1, "no longer holds it", "complete", "a", "--token", token)
    assert known(queue, "a").status is TaskStatus.CANCELLED


def test_dequeue_prints_the_work_and_completes_it(queue: Queue) -> None:
    put("a", "b", "c")
    first, second = answer("dequeue", "--limit", "2")
    assert (first["payload"], second["status"]) == ("work of c", "SUCCESS")
    assert '"work of a"' in freshq("dequeue").stdout
    fails(1, "has nothing to claim", "dequeue")
    assert counts(queue.stats()) == {"success": 3}


def test_the_shell_restores_what_it_holds_to_where_a_new_task_goes(queue: Queue) -> None:
    put("a", "b")
    shell = freshq("shell", text="claim\nclaim\nid b\nrestore\nbury\nrestore\ndequeue\ndequeue\n")
    assert shell.stderr == "freshq: queue 'default' has nothing to claim\n"
    assert shell.stdout.count("task b: PENDING") == 3  # released, restored, restored
    assert counts(queue.stats()) == {"taken": 1, "success": 1}
    fails(1, "cannot redrive as new a task that is TAKEN", "restore", "a")


def test_get_shows_when_a_task_entered_each_state(queue: Queue) -> None:
    put("a")
    (claim,) = queue.claim()
    queue.fail(claim, error="broken")
    times = answer("get", "a")["times"]
    assert list(times) == ["put", "due", "first_claim", "last_claim", "end", "dead"]
    assert times["due"] is None
    assert times["first_claim"] == times["last_claim"]
    assert times["end"] == times["dead"]
    assert all(text is None or datetime.fromisoformat(text).tzinfo is UTC for text in times.values())
    shown = freshq("get", "a").stdout
    year = datetime.now(UTC).year
    for name in ("created", "claimed", "dead"):
        assert re.search(rf"^{name} +{year}-\S+Z, \S+ s ago$", shown, re.MULTILINE), name
    queue.redrive()
    queue.release(queue.claim()[0])
    queue.complete(queue.claim()[0])
    shown = freshq("get", "a").stdout
    for name in ("first claim", "last claim", "was dead", "ended"):
        assert re.search(rf"^{name} +{year}-\S+Z, \S+ s ago$", shown, re.MULTILINE), name
    assert "changed" not in shown


def test_stats_show_the_first_ids_of_each_state(queue: Queue) -> None:
    put("a", "b", "c")
    queue.claim()
    assert answer("stats", "--ids", "1")["ids"]["pending"] == ["b"]
    assert "ids" not in answer("stats")
    shown = freshq("stats", "--ids", "2").stdout
    assert "first ids" in shown
    assert re.search(r"pending .* b, a ", shown)
    fails(2, "ids: must be a whole number from 1 to 2147483647", "stats", "--ids", "0")
    fails(2, "ids: only with exact counts", "stats", "--ids", "1", "--approximate")


def test_dead_letters_past_their_deadline_are_not_redriven_but_restored(
    ahead: Ahead, in_dynamodb: Queue
) -> None:
    put("fresh")
    answer("put", "1", "--task-id", "stale", "--max-age-seconds", "600")
    answer("cancel", "--dead", "fresh", "stale", "--yes")
    ahead.seconds = 601
    redriven = freshq("redrive", "--all", "--yes").stdout
    assert redriven == (
        "1 redriven; expired dead letters stay: freshq redrive --all --as-new returns them as new\n"
    )
    fails(1, "redrive it as new", "redrive", "stale")
    fails(2, "limit: not with task_ids", "redrive", "--as-new", "stale", "--limit", "1")
    assert answer("redrive", "--all", "--as-new", "--yes") == {"redriven": 1}
    assert counts(in_dynamodb.stats()) == {"pending": 2}
    assert freshq("redrive", "--all", "--yes").stdout == "0 redriven\n"


def test_dead_letters_older_than_the_max_age_of_the_address_are_not_redriven(
    ahead: Ahead, in_dynamodb: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRESHQ_QUEUE", f"{URL}?max_age_seconds=600&override=on")
    in_dynamodb.put("work", task_id="old")
    in_dynamodb.cancel("old", dead=True)
    ahead.seconds = 601
    assert freshq("redrive", "--all", "--yes").stdout.startswith("0 redriven; expired dead letters stay")
    assert in_dynamodb.redrive() == 1


def test_some_dead_letters_are_restored(queue: Queue) -> None:
    put("a", "b", "c")
    answer("cancel", "--dead", "a", "b", "c", "--yes")
    assert answer("redrive", "--as-new", "--limit", "2", "--yes") == {"redriven": 2}
    (left,) = (task.task_id for task in queue.list(TaskStatus.FAILURE))
    assert answer("redrive", "--as-new", left) == {"redriven": 1}


def test_of_several_tasks_all_are_redriven_or_none(queue: Queue) -> None:
    put("a", "b")
    answer("cancel", "--dead", "a", "b", "--yes")
    done = freshq("redrive", "--as-new", "a", "nobody", "b", "--yes")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "task 'nobody'" in done.stderr
    assert counts(queue.stats()) == {"failure": 2}
    both = freshq("redrive", "--as-new", "a", "b", "--yes")
    assert both.stdout == "task a: PENDING\ntask b: PENDING\n"
    fails(2, "limit: ", "redrive", "--as-new", "--limit", "0")
