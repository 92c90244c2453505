"""The figures of the demonstration, from histories with known answers."""

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import boto3
import pytest
from local.demo import Demonstration, draw, recompressed
from local.facts import (
    Change,
    Life,
    Service,
    TaskClaim,
    busy_machine_sentence,
    count_fates,
    duplicates_run,
    first_in_first_out,
    goodput_per_second,
    life_of,
    lives_of,
    newest_first_ratio,
    percentile,
    read_changes,
    served_in_time,
    versions_by_task,
    waits_of_done,
)

from freshq import Order, Queue, Task, TaskStatus
from tests.conftest import START, Clock, StoreUnderTest


def life(created: float, *taken: float, fate: TaskStatus = TaskStatus.SUCCESS, **fields: Any) -> Life:
    claims = tuple(TaskClaim(moment, counted=True) for moment in taken)
    values: dict[str, Any] = {"task_id": "a", "deadline": created + 10, "ended": None} | fields
    return Life(created=created, claims=claims, fate=fate, **values)


def history(*steps: str) -> list[Task]:
    """Return the versions of a task that goes through some steps, one second apart."""
    clock = Clock()
    queue = Queue.memory(clock=clock, max_age_seconds=100)
    queue.put("work", task_id="a")
    versions = [queue.get("a")]
    claim: Any = None
    for step in steps:
        clock.advance(1)
        if step == "claim":
            (claim,) = queue.claim(lease_seconds=0.5)
        elif step == "recover":
            queue.admin.recover()
        else:
            getattr(queue, step)(claim)
        versions.append(queue.get("a"))
    return [version for version in versions if version is not None]


class TestLife:
    def test_a_completed_task(self) -> None:
        done = life_of(history("claim", "complete"), START + 50)
        assert (done.fate, done.wait_seconds, done.ended) == (TaskStatus.SUCCESS, 1.0, START + 2)
        assert duplicates_run([done]) == 0

    def test_a_released_task_was_not_run(self) -> None:
        done = life_of(history("claim", "release", "claim", "complete"), START + 50)
        assert [claim.counted for claim in done.claims] == [False, True]
        assert duplicates_run([done]) == 0

    def test_a_task_whose_worker_died_was_run_twice(self) -> None:
        done = life_of(history("claim", "recover", "claim", "complete"), START + 50)
        assert [claim.counted for claim in done.claims] == [True, True]
        assert duplicates_run([done]) == 1

    def test_an_extended_lease_is_not_a_second_claim(self) -> None:
        versions = history("claim", "complete")
        extended = replace(versions[1], lease_until=START + 99)
        assert len(life_of([versions[0], versions[1], extended, versions[2]], START + 50).claims) == 1

    def test_a_task_that_is_never_claimed_is_shed_at_its_deadline(self) -> None:
        shed = life_of(history(), START + 200)
        assert (shed.fate, shed.ended, shed.wait_seconds) == (TaskStatus.SHED, START + 100, None)
        assert life_of(history(), START + 99).fate is TaskStatus.PENDING


def test_the_newest_first_ratio_counts_claims_that_skipped_a_newer_task() -> None:
    old, new = life(0, 5), life(2, 6)
    assert newest_first_ratio([old, new]) == 0.5  # at 5, the newer one had waited for 3 s
    assert newest_first_ratio([life(0, 5), life(2, 4)]) == 1.0  # it was claimed first
    assert newest_first_ratio([life(0, 5), life(4.5, 6)]) == 1.0  # the index may not show it yet
    assert newest_first_ratio([life(0, 5), life(0.5, 6)]) == 1.0  # newer by less than the lag
    assert newest_first_ratio([life(4, 5), life(-20, 30, deadline=40)]) == 1.0
    assert newest_first_ratio([life(0, fate=TaskStatus.SHED)]) is None


def test_counts_and_rates() -> None:
    lives = [life(0, 1, ended=2), life(0, 3, ended=12), life(0, fate=TaskStatus.SHED, ended=10)]
    assert count_fates(lives) == {
        "pending": 0, "taken": 0, "success": 2, "failure": 0, "cancelled": 0, "shed": 1,
    }  # fmt: skip
    assert goodput_per_second(lives, 0, 10) == pytest.approx(0.1)
    assert waits_of_done(lives) == [1, 3]


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    assert percentile([float(value) for value in range(101)], 99) == pytest.approx(99)


def test_the_history_with_the_cost_of_each_change_is_read_from_the_stream(
    streamed_store: StoreUnderTest,
) -> None:
    assert streamed_store.client is not None
    assert streamed_store.table is not None
    queue = streamed_store.queue()
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    queue.complete(claim)
    queue.close()
    streams = boto3.client(
        "dynamodbstreams",
        endpoint_url=streamed_store.client.meta.endpoint_url,
        region_name=streamed_store.client.meta.region_name,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    changes = list(read_changes(streams, streamed_store.table))
    assert [task.status for task in versions_by_task(changes)["a"]] == ["PENDING", "TAKEN", "SUCCESS"]
    of_task = [change.write_units() for change in changes if change.task_after() is not None]
    assert of_task == [2, 2, 1]
    others = {"a lease record": 4, "the counts": 1, "the options": 1}
    assert sum(change.write_units() for change in changes) == 2 + 2 + 1 + sum(others.values())
    assert Change(None, changes[0].new).task_before() is None
    (done,) = lives_of(versions_by_task(changes), START + 1)
    assert done.fate is TaskStatus.SUCCESS


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    lives = [life(0, 1, ended=2), life(1, fate=TaskStatus.SHED), life(2, 3, fate=TaskStatus.FAILURE)]
    shown = Demonstration(lives, [Service(0, 0, in_time=True), Service(1, 12, in_time=False)], 3, 10, 1)
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<svg")):
        file = tmp_path / f"picture{ending}"
        draw(shown, "three tasks", file)
        assert file.read_bytes().startswith(start)
    picture = file.read_text("utf-8")
    for text in ("done in time", "done too late", "shed", "failed", "load ends", "first in, first out"):
        assert text in picture


def test_a_picture_has_the_same_pixels_in_fewer_bytes(tmp_path: Path) -> None:
    file = tmp_path / "bars.png"
    rows = [{"x": number, "y": number**2} for number in range(20)]
    alt.Chart(alt.InlineData(values=rows)).mark_bar().encode(x="x:Q", y="y:Q").save(str(file))
    drawn = file.read_bytes()
    smaller = recompressed(drawn)
    assert len(smaller) < len(drawn)

    def pixels(picture: bytes) -> bytes:
        return zlib.decompressobj().decompress(picture[picture.index(b"IDAT") + 4 :])

    assert len(pixels(drawn)) > len(drawn)
    assert pixels(smaller) == pixels(drawn)
    assert recompressed(smaller) == smaller


def test_first_in_first_out_is_late_once_its_backlog_is_older_than_the_deadline() -> None:
    # Two tasks a second, one done a second, a deadline of three seconds.
    lives = [life(number / 2, number, ended=number + 1, deadline=number / 2 + 3) for number in range(20)]
    services = first_in_first_out(lives, servers=1, load_seconds=10)
    assert [service.started for service in services] == pytest.approx([float(n) for n in range(20)], abs=0.01)
    assert [service.in_time for service in services] == [True] * 5 + [False] * 15
    assert served_in_time(lives, 1, 10, Order.LIFO) > 5


def test_a_machine_that_was_too_busy_is_named() -> None:
    assert busy_machine_sentence(goodput_per_second=7.0, capacity_per_second=8.0) is None
    sentence = busy_machine_sentence(goodput_per_second=3.6, capacity_per_second=8.0)
    assert sentence is not None
    assert "3.6 of 8 tasks a second were done in time (45%" in sentence
