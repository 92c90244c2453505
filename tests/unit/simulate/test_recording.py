"""Recordings: what events of a queue become, and what reads them."""

import gzip
import json
import math
from pathlib import Path
from typing import Any, Final

import pytest

from freshq.simulate import Recording, ServiceDistribution, read_recording
from freshq.simulate.load import MOST_ENDED, SWEEP_EVENTS, Recorder, parsed_events

START_MS: Final = 1_700_000_000_000.0


def event(task_id: str, at: float, status: str, change: str = "MODIFY", **more: Any) -> dict[str, Any]:
    """Return an event at a time in seconds; the task was created at `created`, by default at 0 s."""
    created = more.pop("created", 0.0)
    known = {"deadline_ms": START_MS + 1000 * (created + 10), "priority": 0, "attempts": 1, "queue": "mail"}
    return {
        "task_id": task_id,
        "change": change,
        "status": status,
        "stream_ms": START_MS + 1000 * at,
        "updated_ms": START_MS + 1000 * at,
        "created_ms": START_MS + 1000 * created,
        **known,
        **more,
    }


def put(task_id: str, at: float = 0.0, **more: Any) -> dict[str, Any]:
    return event(task_id, at, "PENDING", "INSERT", created=at, attempts=0, **more)


def recorded(*events: dict[str, Any], recorder: Recorder | None = None) -> list[dict[str, Any]]:
    used = Recorder() if recorder is None else recorder
    lines = [line for each in events for line in used.add(each)]
    return [*lines, *used.rest()]


def test_a_task_that_ran() -> None:
    (line,) = recorded(
        put("a", group="acme", kind="quote", priority=9, parent="b"),
        event("a", 3.0, "TAKEN", group="acme", kind="quote", priority=9, parent="b"),
        event("a", 4.5, "SUCCESS", group="acme", kind="quote", priority=9, parent="b"),
    )
    assert line == {
        "version": 1, "at_seconds": START_MS / 1000, "service_seconds": 1.5, "deadline_seconds": 10.0,
        "level": 9, "group": "acme", "kind": "quote", "parent": "b",
    }  # fmt: skip


def test_a_task_with_a_value() -> None:
    more: dict[str, Any] = {"value": 2.5, "decay": "linear"}
    (line,) = recorded(put("a", **more), event("a", 1.0, "TAKEN", **more), event("a", 2.0, "SUCCESS", **more))
    assert {name: line[name] for name in more} == more


def test_attempts_add_up_and_a_release_does_not_count() -> None:
    (line,) = recorded(
        put("a"),
        event("a", 1.0, "TAKEN", lease="1"),
        event("a", 2.0, "PENDING"),
        event("a", 3.0, "TAKEN", lease="2", attempts=2),
        event("a", 3.5, "PENDING", attempts=1),
        event("a", 4.0, "TAKEN", lease="3", attempts=2),
        event("a", 4.5, "TAKEN", lease="3", attempts=2),
        event("a", 6.0, "FAILURE", attempts=2),
    )
    assert line["service_seconds"] == 3.0


@pytest.mark.parametrize(
    "events",
    [
        [put("a")],
        [put("a"), event("a", 20.0, "PENDING", "REMOVE", ttl_removal=True)],
        [put("a"), event("a", 1.0, "SHED")],
        [put("a"), event("a", 1.0, "TAKEN")],
        [put("a"), event("a", 1.0, "TAKEN"), event("a", 2.0, "PENDING")],
    ],
)
def test_a_task_that_never_ran_to_its_end_has_no_service_time(events: list[dict[str, Any]]) -> None:
    (line,) = recorded(*events)
    assert "service_seconds" not in line
    assert line["deadline_seconds"] == 10.0


@pytest.mark.parametrize(
    "events",
    [
        [put("a"), event("a", 1.0, "CANCELLED")],
        [put("a"), event("a", 1.0, "FAILURE")],
        [put("a"), event("a", 1.0, "PENDING", "REMOVE")],
        [put("x", 5.0), event("a", 6.0, "TAKEN", created=-3.0), event("a", 7.0, "SUCCESS", created=-3.0)],
    ],
)
def test_what_is_left_out(events: list[dict[str, Any]]) -> None:
    recorder = Recorder()
    lines = recorded(*events, recorder=recorder)
    assert [line["at_seconds"] for line in lines] == [START_MS / 1000 + 5.0] * (len(events) == 3)
    assert recorder.left_out >= 1


def test_repeated_and_late_events_change_nothing() -> None:
    taken, done = event("a", 1.0, "TAKEN"), event("a", 2.0, "SUCCESS")
    assert recorded(put("a"), put("a"), taken, taken, put("a"), done, done, taken) == recorded(
        put("a"), taken, done
    )
    # The put arrives last.
    assert recorded(put("b"), taken, done, put("a")) == recorded(put("b"), put("a"), taken, done)


def test_a_task_under_the_id_of_an_earlier_one_is_another_task() -> None:
    lines = recorded(
        put("a"), event("a", 1.0, "TAKEN"), event("a", 2.0, "SUCCESS"),
        put("a", 50.0), event("a", 51.0, "TAKEN", created=50.0), event("a", 51.5, "SUCCESS", created=50.0),
    )  # fmt: skip
    assert [line["service_seconds"] for line in lines] == [1.0, 0.5]


def test_stale_tasks_are_forgotten_meanwhile() -> None:
    recorder = Recorder()
    lines = [line for n in range(3 * SWEEP_EVENTS) for line in recorder.add(put(str(n), n / 100))]
    assert len(lines) > 2 * SWEEP_EVENTS
    assert len(recorder._lives) < SWEEP_EVENTS
    assert len(recorder._ended) <= MOST_ENDED
    assert len(lines) + len(list(recorder.rest())) == recorder.tasks == recorder.unknown == 3 * SWEEP_EVENTS


def test_one_queue_is_recorded() -> None:
    other = put("b", 1.0, queue="sms")
    with pytest.raises(ValueError, match="--name"):
        recorded(put("a"), other)
    assert len(recorded(put("a"), other, recorder=Recorder("sms"))) == 1


def test_damaged_lines_stop_nothing() -> None:
    sound = json.dumps(put("a"))
    lines = [sound + sound, "", "{", "[1]", '{"task_id": "a"}', sound]
    assert [each is not None for each in parsed_events(lines)] == [True, True, False, False, False, True]


# --- reading


def write(file: Path, *lines: dict[str, Any]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text, "utf-8")
    return file


@pytest.mark.parametrize("name", ["load.jsonl", "load.jsonl.gz"])
def test_a_recording_is_read_in_order(tmp_path: Path, name: str) -> None:
    file = write(
        tmp_path / name,
        {"at_seconds": 107.0, "service_seconds": 2.0, "level": 3, "kind": "a", "version": 1},
        {"at_seconds": 100.0, "deadline_seconds": 5.0, "group": "acme", "kind": "a", "parent": "b"},
    )
    found = read_recording(file)
    assert list(found.at) == [0.0, 7.0]
    assert list(found.ages) == [5.0, math.inf]
    assert list(found.levels) == [0, 3]
    assert found.groups == ["acme", None]
    assert (found.unknown_services, found.max_age_seconds, len(found)) == (1, 5.0, 2)
    load = found.with_services(1).load(20.0)
    assert list(load.service) == [2.0, 2.0]
    assert list(load.deadline) == [5.0, 27.0]
    assert load.duration_seconds == pytest.approx(7.0)


def test_values_are_read_where_there_are_any(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"at_seconds": 3.0, "service_seconds": 1.0},
        {"at_seconds": 2.0, "service_seconds": 1.0, "value": 8, "decay": "linear"},
        {"at_seconds": 1.0, "service_seconds": 1.0, "value": None, "decay": None},
        {"at_seconds": 4.0, "service_seconds": 1.0, "decay": "step"},
    ]
    found = read_recording(write(tmp_path / "load.jsonl", *lines)).with_services(1)
    load = found.load(10.0)
    assert (list(load.values), list(load.decays)) == ([1.0, 8.0, 1.0, 1.0], [0, 1, 0, 0])
    assert [load.worth(task, 6.0) for task in range(4)] == [1.0, 4.0, 1.0, 1.0]
    part = found.chosen([3, 1], [0.0, 1.0])
    assert (list(part.values), list(part.decays)) == ([1.0, 8.0], [0, 1])
    plain = read_recording(write(tmp_path / "plain.jsonl", lines[0], lines[3])).load(10.0)
    assert (list(plain.values), list(plain.decays)) == ([], [])


@pytest.mark.parametrize(
    "wrong", [{"value": 0}, {"value": -1}, {"value": 1e13}, {"value": "1"}, {"decay": "fast"}]
)
def test_a_wrong_value_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = write(tmp_path / "load.jsonl", {"at_seconds": 1.0, **wrong})
    with pytest.raises(ValueError, match=f"line 1: {next(iter(wrong))}: "):
        read_recording(file)


def test_service_times_are_drawn_from_those_of_the_kind(tmp_path: Path) -> None:
    known = [{"at_seconds": n, "service_seconds": 1.0 + n % 2, "kind": "ab"[n % 2]} for n in range(20)]
    file = write(tmp_path / "load.jsonl", *known, *({"at_seconds": 30.0 + n, "kind": "b"} for n in range(9)))
    assert list(read_recording(file).with_services(1).service[20:]) == [2.0] * 9
    others = write(tmp_path / "other.jsonl", *known, *({"at_seconds": 30.0 + n} for n in range(30)))
    assert set(read_recording(others).with_services(1).service[20:]) == {1.0, 2.0}


def test_without_any_service_time_there_is_nothing_to_draw_from(tmp_path: Path) -> None:
    file = write(tmp_path / "load.jsonl", {"at_seconds": 1.0}, {"at_seconds": 2.0})
    with pytest.raises(ValueError, match="service time"):
        read_recording(file).with_services(1)
    drawn = read_recording(file).trace(10.0, service=ServiceDistribution.DET, service_mean_seconds=0.5)
    assert list(drawn.service) == [0.5, 0.5]


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "load.jsonl", {"at_seconds": 1.0, "version": 2})
    with pytest.raises(ValueError, match="line 1: version: "):
        read_recording(file)


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "load.parquet"
    file.write_text("{}")
    with pytest.raises(ValueError, match="not a Parquet file"):
        read_recording(file)


def test_some_tasks_are_chosen() -> None:
    found = Recording()
    assert len(found) == 0
