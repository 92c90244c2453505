"""Folders in a bucket behave like folders on a disk. S3 is the emulator's."""

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import boto3
import pytest
from local.emulator import REGION, Emulator

from freshq_pipeline.errors import Overtaken
from freshq_pipeline.ingest.inputs import input_files
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import for_pyarrow, normalized
from freshq_pipeline.storage.days import Day
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State, current, prune, publish, published_runs
from freshq_pipeline.storage.table_files import move_in
from tests.support.patience import PATIENCE_SECONDS

AT_A_TIME: Final = 8


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a client of an S3 that PyArrow also uses."""
    with (
        Emulator(tmp_path_factory.mktemp("emulator") / "log") as emulator,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in emulator.environment.items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        client = boto3.client("s3", **emulator.connection)
        client.create_bucket(Bucket="own")
        yield client


def keys(client: Any, prefix: str) -> list[str]:
    listed = client.list_objects_v2(Bucket="own", Prefix=prefix).get("Contents", [])
    return [entry["Key"] for entry in listed if not entry["Key"].endswith("/")]


def file_of(run_id: str) -> str:
    return f"files/tasks/day=2026-01-01/queue=a/{run_id}-0000.parquet"


def state(run_id: str, published: list[str]) -> State:
    tables = {"tasks": {"2026-01-01": [file_of(run_id)]}}
    days = {20454: Day({run_id: 4})}
    return State(run_id, "s3://own/in", "landed", days=days, tables=tables, published=published)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_runs_are_published_and_pruned(s3: Any, scheme: str) -> None:
    out = Folder(f"{scheme}://own/{scheme}-out/")
    assert not out.local
    assert current(out) is None
    for run_id in ("1", "2"):
        out.write(f"runs/{run_id}/tasks/day=2026-01-01/queue=a/part-0.parquet", "rows")
        assert move_in(out, run_id, "tasks") == {"2026-01-01": [file_of(run_id)]}
        out.write(f"silver/{run_id}/day=2026-01-01/part-0.parquet", "rows")
        publish(out, state(run_id, published_runs(out)), {"run_id": run_id}, keep_runs=1)
    assert current(out) == state("2", ["1", "2"])
    assert out.read_json("summary.json") == {"run_id": "2"}
    assert keys(s3, f"{scheme}-out/") == [
        f"{scheme}-out/{name}"
        for name in (
            "_current.json",
            file_of("2"),
            "runs/2/summary.json",
            "runs/2/tables/manifest.json",
            "silver/2/day=2026-01-01/part-0.parquet",
            "summary.json",
            "tables/manifest.json",
        )
    ]
    assert out.at("runs/2") == f"{scheme}://own/{scheme}-out/runs/2"


def write_draft(out: Folder, run_id: str) -> None:
    out.write(f"runs/{run_id}/tasks/day=2026-01-01/queue=a/part-0.parquet", "rows")
    move_in(out, run_id, "tasks")
    out.write(f"silver/{run_id}/day=2026-01-01/part-0.parquet", "rows")


def test_of_two_runs_at_a_time_the_first_to_end_is_published(s3: Any) -> None:
    out = Folder("s3://own/at-a-time")
    for run_id in ("1", "2"):
        write_draft(out, run_id)
        publish(out, state(run_id, published_runs(out)), {"run_id": run_id}, keep_runs=1)
    seen_by_both = published_runs(out)
    for run_id in ("3", "4"):
        write_draft(out, run_id)
    publish(out, state("4", seen_by_both), {"run_id": "4"}, keep_runs=1)
    # Run 3 may be anywhere, so its files are still there.
    assert {"runs/2", "silver/2"}.isdisjoint(folders(s3, "at-a-time"))
    assert {"silver/3", "silver/4", "files/tasks"} <= folders(s3, "at-a-time")
    pointer = out.read_json("_current.json")
    with pytest.raises(Overtaken):
        publish(out, state("3", seen_by_both), {"run_id": "3"}, keep_runs=1)
    # A run overtaken after the comparison deletes nothing, not even files it no longer needs.
    prune(out, state("3", [*seen_by_both, "3"]), keep_runs=1)
    assert out.read_json("_current.json") == pointer
    assert {"runs/4", "silver/4"} <= folders(s3, "at-a-time")
    assert {"runs/3", "silver/3"}.isdisjoint(folders(s3, "at-a-time"))
    assert file_of("4") in [file.path for file in out.files("files")]
    # The run after the next one deletes its remains.
    write_draft(out, "5")
    publish(out, state("5", published_runs(out)), {"run_id": "5"}, keep_runs=1)
    assert [file.path for file in out.files("files/tasks")] == [file_of("5")]


def folders(client: Any, below: str) -> set[str]:
    """Return the folders two levels below another that have files."""
    return {"/".join(key.split("/")[1:3]) for key in keys(client, f"{below}/")}


def test_several_files_at_a_time_are_moved_and_deleted(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Folder("s3://own/many")
    targets = {f"runs/1/tasks/{number}": f"files/{number}" for number in range(2 * AT_A_TIME)}
    for path in targets:
        out.write(path, path)
    together = Barrier(AT_A_TIME)
    for name in ("_move", "_delete_file"):
        change: Any = getattr(Folder, name)

        def waiting(folder: Folder, file: object, change: Any = change) -> None:
            together.wait(PATIENCE_SECONDS)
            change(folder, file)

        monkeypatch.setattr(Folder, name, waiting)
    out.move_files(targets)
    assert keys(s3, "many/") == sorted(f"many/{path}" for path in targets.values())
    assert out.open("files/7").read() == b"runs/1/tasks/7"
    out.delete_files(targets.values())
    out.delete_files(targets.values())
    assert keys(s3, "many/") == []


def test_a_file_that_cannot_be_moved_is_an_error(s3: Any) -> None:
    out = Folder("s3://own/one-is-missing")
    out.write("a", "a")
    with pytest.raises(OSError, match="one-is-missing/b"):
        out.move_files({name: f"to/{name}" for name in "ab"})
    assert keys(s3, "one-is-missing/") == ["one-is-missing/to/a"]


def test_the_pointer_is_replaced_by_one_request(s3: Any) -> None:
    out = Folder("s3://own/pointer")
    out.write("_current.json", "x" * 100)
    out.write_json("_current.json", {"run_id": "2"})
    assert out.read_json("_current.json") == {"run_id": "2"}
    assert keys(s3, "pointer/") == ["pointer/_current.json"]


def test_landed_events_are_found(s3: Any, tmp_path: Path) -> None:
    for name in ("2026/11/21/08/a.gz", "2026/11/21/09/b.gz"):
        s3.put_object(Bucket="own", Key=f"events/{name}", Body=b"line\n")
    s3.put_object(Bucket="own", Key="errors/c", Body=b"line\n")
    found = input_files(Folder("s3://own/events"), Format.LANDED)
    assert {path: size for path, (size, _) in found.items()} == {
        "2026/11/21/08/a.gz": 5,
        "2026/11/21/09/b.gz": 5,
    }
    assert not Folder("s3://own/nothing").is_folder()
    assert list(tmp_path.iterdir()) == []


def test_on_a_cluster_the_region_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    assert for_pyarrow("s3a://own/out") == "s3://own/out"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert for_pyarrow("s3a://own/out") == f"s3://own/out?region={REGION}"
    assert for_pyarrow("/a/folder") == "/a/folder"


@pytest.mark.parametrize("other", ["file:/a/b", "file:///a/b", "/a//b"])
def test_spellings_of_a_local_file_are_equal(other: str) -> None:
    assert normalized(other) == normalized("/a/b")


def test_spellings_of_an_object_are_equal() -> None:
    assert normalized("s3a://own/a") == normalized("s3://own//a") != normalized("s3://other/a")


def test_a_given_region_is_used(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    Folder("s3://own/given").write("a.json", "{}")
    assert keys(s3, "given/") == ["given/a.json"]
