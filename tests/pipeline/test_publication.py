"""A run that is killed at any step of publishing leaves the tables of one run, whole, and is forgotten."""

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from freshq_pipeline.errors import BadInput, Unfinished
from freshq_pipeline.runs.batch import RunPlan, finish_last
from freshq_pipeline.runs.stream import stream
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage import state as state_of_runs
from freshq_pipeline.storage.days import Day
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import (
    State,
    current,
    prune,
    prune_killed,
    publish,
    published_runs,
    required_current,
    show,
)
from freshq_pipeline.storage.table_files import (
    Files,
    manifest,
    manifest_path,
    move_in,
    newest_days,
    published_paths,
    replaced,
)
from tests.pipeline.killing import KilledError, killed_at

DAYS = ("2026-01-01", "2026-01-02")


def run(
    out: Folder, run_id: str, days: tuple[str, ...], keep_runs: int = 1, given_up: tuple[str, ...] = ()
) -> None:
    """Publish tables of some days, without Spark, and give up the silver of others."""
    before = current(out)
    moved = write_draft(out, run_id, days)
    for day in days:
        out.write(f"silver/{run_id}/day={day}/part-0.parquet", "rows")
    known = {} if before is None else before.tables
    state = State(run_id, "in", "landed", days={} if before is None else before.days)
    state.published = published_runs(out)
    state.tables = replaced(known, moved, {"tasks": days})
    # The days of the run are in its own part of silver only, as if they had been rewritten.
    state.days = state.days | {at: Day({run_id: 1}) for at, day in enumerate(DAYS, 20454) if day in days}
    state.days |= {at: Day() for at, day in enumerate(DAYS, 20454) if day in given_up}
    publish(out, state, {"run_id": run_id}, keep_runs)


def write_draft(out: Folder, run_id: str, days: tuple[str, ...]) -> Files:
    """Write tables of some days, and return their files."""
    for day in days:
        out.write(f"runs/{run_id}/tasks/day={day}/queue=a/part-0.parquet", f"{run_id} {day}")
    return {"tasks": move_in(out, run_id, "tasks")}


def seen(out: Path) -> dict[str, str]:
    """Return what readers find by a pattern and by the manifest: the content of each day."""
    named = json.loads((out / "tables/manifest.json").read_text())["tables"]["tasks"]
    by_manifest, by_pattern = (
        {file.parts[-3].removeprefix("day="): file.read_text() for file in files}
        for files in ([out / path for path in named], (out / "tables/tasks").glob("*/*/*.parquet"))
    )
    assert by_pattern == by_manifest
    assert len(named) == len(by_manifest) == len(list((out / "tables").glob("**/*.parquet")))
    return by_manifest


def test_a_killed_publication_shows_one_run_and_the_next_one_repairs_it(tmp_path: Path) -> None:
    steps, states = 0, set[str]()
    while True:
        root = tmp_path / f"{steps:02}"
        out = Folder(str(root))
        run(out, "1", DAYS)
        old = seen(root)
        with killed_at(steps) as killed:
            run(out, "2", DAYS[1:])
        new = {DAYS[0]: f"1 {DAYS[0]}", DAYS[1]: f"2 {DAYS[1]}"}
        assert seen(root) in (old, new), steps
        state = required_current(out)
        states.add(state.run_id)
        # The next run shows the current one first, and continues from it.
        show(out, state.run_id)
        assert seen(root) == (old if state.run_id == "1" else new)
        run(out, "3", DAYS[:1])
        assert seen(root) == {DAYS[0]: f"3 {DAYS[0]}", DAYS[1]: f"{state.run_id} {DAYS[1]}"}
        assert [file.path for file in out.files("files/tasks")] == sorted(published_paths(out, "3", "tasks"))
        assert silver(out) == {f"silver/3/day={DAYS[0]}", f"silver/{state.run_id}/day={DAYS[1]}"}, steps
        if not killed:
            break
        steps += 1
    assert states == {"1", "2"}
    assert steps >= 10  # moving, links, manifest, summary, pointer, the readers' view, and deletions


def silver(out: Folder) -> set[str]:
    """Return the folders of silver that have files."""
    return {file.path.rpartition("/")[0] for file in out.files("silver")}


@pytest.mark.parametrize("end", ["a run with new events", "a run that finds nothing new"])
def test_silver_that_was_given_up_is_deleted_although_that_run_was_killed(end: str, tmp_path: Path) -> None:
    steps, killed = 0, ["first"]
    while killed:
        out = Folder(str(tmp_path / f"{steps:02}"))
        run(out, "1", DAYS)
        with killed_at(steps) as killed:
            run(out, "2", (), given_up=DAYS[:1])
        state = required_current(out)
        if end == "a run with new events":
            run(out, "3", ())
        else:
            request: Any = SimpleNamespace(out=out, options=SimpleNamespace(keep_runs=1))
            finish_last(request, RunPlan(state, {}, []))
        kept = DAYS if state.run_id == "1" else DAYS[1:]
        assert silver(out) == {f"silver/1/day={day}" for day in kept}, steps
        steps += 1


def test_runs_are_kept_with_the_files_that_they_name(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    for run_id in ("1", "2", "3"):
        run(out, run_id, DAYS[1:] if run_id > "1" else DAYS, keep_runs=2)
    contents = {
        run_id: [(tmp_path / path).read_text() for path in published_paths(out, run_id, "tasks")]
        for run_id in ("2", "3")
    }
    assert contents == {one: [f"1 {DAYS[0]}", f"{one} {DAYS[1]}"] for one in ("2", "3")}
    newest = newest_days(published_paths(out, "3", "tasks"), 1)
    assert newest == {DAYS[1]: [f"files/tasks/day={DAYS[1]}/queue=a/3-0000.parquet"]}
    assert out.folders("runs") == ["2", "3"]
    # The second day of run 1 is neither in a table nor in silver any more.
    assert len(out.files("files/tasks")) == 3
    assert {file.path for file in out.files("silver")} == {
        f"silver/1/day={DAYS[0]}/part-0.parquet",
        f"silver/3/day={DAYS[1]}/part-0.parquet",
    }


def test_only_published_runs_are_kept(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    run(out, "1", DAYS)
    for killed in ("2", "3"):
        with pytest.MonkeyPatch.context() as patch:
            # Manifest and summary are written, and the pointer is not.
            patch.setattr(state_of_runs, "check_current", Mock(side_effect=KilledError))
            with suppress(KilledError):
                run(out, killed, DAYS, keep_runs=2)
    assert out.folders("runs") == ["1", "2", "3"]
    run(out, "4", DAYS[1:], keep_runs=2)
    assert out.folders("runs") == ["1", "4"]
    # The requested number, although some folders are gone.
    (tmp_path / manifest_path("1")).unlink()
    run(out, "5", DAYS[1:], keep_runs=3)
    assert out.folders("runs") == ["4", "5"]


def test_runs_of_another_version_are_replaced_by_a_full_refresh(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    for run_id in ("1", "2"):
        run(out, run_id, DAYS, keep_runs=5)
    out.write_json("_current.json", out.read_json("_current.json") | {"version": 0, "unknown": []})
    (tmp_path / manifest_path("1")).unlink()  # it was in another folder
    with pytest.raises(BadInput, match="--full-refresh"):
        current(out)
    # Like --full-refresh, which reads no state.
    moved = write_draft(out, "3", DAYS)
    state = State("3", "in", "landed", tables=moved, published=published_runs(out))
    publish(out, state, {"run_id": "3"}, keep_runs=5)
    assert seen(tmp_path) == {day: f"3 {day}" for day in DAYS}
    assert out.folders("runs") == ["2", "3"]


def test_a_damaged_pointer_is_named_and_replaced(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    run(out, "1", DAYS)
    out.write("_current.json", "{")
    with pytest.raises(BadInput, match=r"_current\.json"):
        current(out)
    state = State("2", "in", "landed", published=published_runs(out))
    state.tables = {"tasks": write_draft(out, "2", DAYS)["tasks"]}
    publish(out, state, {"run_id": "2"}, keep_runs=1)
    assert seen(tmp_path) == {day: f"2 {day}" for day in DAYS}


def test_files_of_a_run_in_progress_are_not_pruned(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    run(out, "1", DAYS)
    out.write("files/tasks/day=2026-01-03/queue=a/2-0000.parquet", "moved, not published")
    out.write("files/tasks/day=2026-01-03/queue=a/0-0000.parquet", "of a run that was killed")
    state = required_current(out)
    prune(out, state, keep_runs=1)
    assert [file.path for file in out.files("files/tasks/day=2026-01-03")] == [
        "files/tasks/day=2026-01-03/queue=a/2-0000.parquet"
    ]
    assert manifest("1", {})["tables"]["minutes"] == []


def test_what_killed_and_failed_runs_left_is_deleted_when_the_next_one_starts(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    left = ("runs/2/tasks/0.parquet", "silver/2/day=2026-01-01/0.parquet", "ids/2/0.parquet",
            "quarantine/2/0.json", "salvage/2/0.txt", "files/tasks/day=2026-01-01/queue=a/2-0000.parquet",
            "parts/totals/2-0000.parquet", "silver/2-all/day=2026-01-01/0.parquet")  # fmt: skip
    for path in left:
        out.write(path, "")
    prune_killed(out)
    assert out.files() == []  # before the first publication, too
    run(out, "1", DAYS)
    out.write("silver/1-all/day=2026-01-01/0.parquet", "joined by the current run")
    out.write("quarantine/1/0.json", "of the current run")
    before = out.files()
    for path in left:
        out.write(path, "")
    prune_killed(out)
    assert out.files() == before
    out.write("_current.json", "{")
    prune_killed(out)
    assert seen(tmp_path) == {day: f"1 {day}" for day in DAYS}  # no pointer names the current run


def killed_before_it_is_shown(out: Folder, run_id: str) -> None:
    """Publish a run whose process ends once it is the current one."""
    with pytest.MonkeyPatch.context() as patch:

        def kill(*_arguments: object) -> None:
            raise KilledError

        patch.setattr("freshq_pipeline.storage.state.show", kill)
        with suppress(KilledError):
            run(out, run_id, DAYS)


def test_a_run_that_finds_nothing_new_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    run(out, "1", DAYS)
    killed_before_it_is_shown(out, "2")
    assert seen(tmp_path) == {day: f"1 {day}" for day in DAYS}
    request: Any = SimpleNamespace(out=out, options=SimpleNamespace(keep_runs=1))
    finish_last(request, RunPlan(current(out), {}, []))
    assert seen(tmp_path) == {day: f"2 {day}" for day in DAYS}
    assert out.folders("runs") == ["2"]


def test_a_stream_begins_with_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Any, ...]] = []

    def kill(*arguments: Any) -> None:
        begun.append(arguments)
        raise KilledError

    options = SimpleNamespace(form=Format.LANDED)
    out, planned = Folder(str(tmp_path)), RunPlan(None, {}, [])
    request: Any = SimpleNamespace(options=options, out=out)
    monkeypatch.setattr("freshq_pipeline.runs.stream.plan", lambda _request: planned)
    monkeypatch.setattr("freshq_pipeline.runs.stream.finish_last", kill)
    monkeypatch.setattr("freshq_pipeline.runs.stream.session_beside", lambda spark: spark)
    no_spark: Any = None
    with pytest.raises(KilledError):
        stream(no_spark, request, str(tmp_path / "checkpoint"))
    assert begun == [(request, planned)]


def test_an_error_after_the_publication_says_that_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Folder(str(tmp_path))
    run(out, "1", DAYS)
    monkeypatch.setattr(state_of_runs, "prune", Mock(side_effect=OSError("the disk is gone")))
    with pytest.raises(Unfinished):
        run(out, "2", DAYS)
    assert seen(tmp_path) == {day: f"2 {day}" for day in DAYS}
