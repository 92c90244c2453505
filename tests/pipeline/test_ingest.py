"""Arrow and Spark make the same canonical events of files; values of unknown attributes are dropped."""

import gzip
import json
import random
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from freshq import Queue
from freshq.model.codec import holder
from freshq.stores.dynamodb.items import Keyspace, encode, mutable_attributes
from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest import groups, silver, sound_files
from freshq_pipeline.ingest.copies import OVERSIZED, copy, prepare
from freshq_pipeline.ingest.groups import grouped
from freshq_pipeline.ingest.silver import MAX_UNKNOWN_FIELDS, Ingested, most_frequent
from freshq_pipeline.ingest.sound_files import Sound, canonical_block, join_silver, write_sound
from freshq_pipeline.ingest.sources import CHANGES, OWN, STATUSES, canonical, read_copies, read_records
from freshq_pipeline.schemas import EVENT, Format
from freshq_pipeline.storage.folder import Folder
from tests.pipeline.conftest import Pipeline, all_rows, query, without_names
from tests.pipeline.recording import START_SECONDS, Recording, small, write_lines
from tests.support.readings import known

MIB: Final = 1 << 20
MORE: Final[dict[str, Any]] = {
    "lease_until_ms": 1.5, "put_ms": START_SECONDS * 1e3, "kind": "mail", "parent": "p", "root": "r",
    "value": 2.5, "decay": "linear",
}  # fmt: skip
EVENT_LINE: Final[dict[str, Any]] = small().landed()[1] | MORE
NUMBERS: Final = (
    0, -0.0, 1, -1, 7, 2.5, 1e3, 1e-7, 0.0005, 0.0004999, 1767225603772.738, 1767225603772.7385, 2**31 - 1,
    2**31, -(2**31), -(2**31) - 1, 2**53, 2**63, 9_007_199_254_740.9, 9_007_199_254_741.0,
    253_402_300_799_999, 253_402_300_800_000, -62_135_596_800_000, 1e15, 1e300, float("nan"), float("inf"),
    10**400,
)  # fmt: skip
TEXTS: Final = (
    "", " ", "x", "PENDING", "TAKEN", "LOST", "REMOVE", "INSERT", "SNAPSHOT", "7", "-1", "1e3", "NaN", "true",
    "null", "ä ö 中 🙂", "\x00", "\x7f", "\u2028", 'a "b", c: {}', "}{", "}\n{", "\r\n", "\\", "/",
    "2026-01-01T00:00:00", "9" * 39, "9" * 40, "9" * 41, "ü" * 45, "-", "\ud800", "1" * 2000,
)  # fmt: skip
# Within ten years of each other, and others.
CLOCKS: Final = tuple(
    START_SECONDS * 1e3 + off for off in (0.0005, 2.5, 1772.7385, 8.64e7, 8.65e7, -3e10, -3.15e11, -3.16e11)
)
VALID: Final = {"change": CHANGES, "status": STATUSES, "updated_ms": CLOCKS, "stream_ms": CLOCKS}
OTHERS: Final[tuple[Any, ...]] = (None, True, False, [], [1], {}, {"a": 1})
# Lines that are not one JSON object.
LINES: Final[tuple[Callable[[str], str], ...]] = (
    lambda _: "null", lambda _: "true", lambda _: "1", lambda _: '"text"', lambda _: "[]", lambda _: "{}",
    lambda _: "", lambda _: " ", lambda _: "\t", lambda _: "not json", lambda _: "NaN",
    lambda line: f"[{line}]", lambda line: line * 2, lambda line: f"{line} {line}",
    lambda line: f"{line}  {line}", lambda line: f"{line}null", lambda line: f"{line}null{line}",
    lambda line: f"null{line}", lambda line: f"{line} x", lambda line: f"{line},", lambda line: f" {line} ",
    lambda line: f"\ufeff{line}", lambda line: line[:-1], lambda line: line[1:],
    lambda line: line[: len(line) // 2], lambda line: line.replace(",", ",\n", 1),
    lambda line: line.replace(",", ",\r", 1), lambda line: f"{line}\r", lambda line: line.replace('"', "'"),
    lambda line: line.replace(":", "=", 1), lambda line: line + "\x00",
    lambda line: line.replace("{", "{ \t", 1), lambda line: line.replace('"change"', '"\\u0063hange"'),
)  # fmt: skip
# Text that may follow an object.
ENDS: Final = (
    ', "change": "INSERT"}', ",}", "//}", ', "priority": 01}', ', "put_ms": 1.}', ', "put_ms": .5}', "}}",
    ', "put_ms": 0.' + "1" * 1200 + "}", ', "put_ms": 1.7976931348623157e309}', ', "lease": "\\x"}', ' }',
    ', "lease": "a\tb"}', ', "_broken": "x"}', ', "Lease": "x"}', ', "": 1}', ', "new": {"a": "}{"}}',
)  # fmt: skip
WITH_ENDS: Final = tuple((lambda line, end=end: line[:-1] + end) for end in ENDS)


def changed(generator: random.Random) -> str:
    """Return a landed event as a line, with something unusual in it."""
    event: dict[str, Any] = dict(EVENT_LINE)
    for _ in range(generator.choice((0, 1, 1, 1, 2))):
        name = generator.choice([*event, "shed_reason", "not_before_ms", "kind", "expires_s", "unknown"])
        fitting = TEXTS if isinstance(event.get(name, ""), str) else NUMBERS
        if generator.random() < 0.2:
            event.pop(name, None)
        else:
            values = generator.choice((VALID.get(name, fitting), fitting, fitting, NUMBERS, TEXTS, OTHERS))
            event[name] = generator.choice(values)
    line = json.dumps(event, ensure_ascii=generator.random() < 0.5)
    return generator.choice((*LINES, *WITH_ENDS))(line) if generator.random() < 0.2 else line


def encoded(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def sound_blocks() -> dict[bytes, list[dict[str, Any]]]:
    """Return the blocks of a random corpus that Arrow accepts, with their events."""
    generator = random.Random(20260101)
    made = {}
    for _ in range(7000):
        lines = [json.dumps(EVENT_LINE), *(changed(generator) for _ in range(generator.choice((1, 1, 2))))]
        table = canonical_block(encoded(lines))
        if table is not None:
            made[encoded(lines)] = table.to_pylist()
    return made


def read_by_spark(spark: SparkSession, file: Path, form: Format, *, copied: bool) -> DataFrame:
    """Return the events of a file that Spark reads directly or from a copy."""
    if not copied:
        return read_records(spark, [str(file)], form)
    events, out = Folder(str(file.parent)), Folder(str(file.parent / "out"))
    (one,) = copy(spark, events, {file.name: file.stat().st_size}, out, "copies")
    return read_copies(spark, [out.at(str(one.copy))], form)


@pytest.mark.parametrize("copied", [True, False])
def test_both_make_the_same_events(
    sound_blocks: dict[bytes, list[dict[str, Any]]],
    copied: bool,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    # Arrow leaves most blocks with something unusual to Spark, but far from all.
    assert 500 < len(sound_blocks) < 3000
    (tmp_path / "a.json").write_bytes(b"\n".join(sound_blocks))
    rows = read_by_spark(spark, tmp_path / "a.json", Format.LANDED, copied=copied).collect()
    assert [row["problem"] for row in rows if row["problem"] is not None] == []
    by_spark = [{name: row[name] for name in EVENT} for row in rows]
    assert by_spark == [event for events in sound_blocks.values() for event in events]


def test_unusual_values_reach_both(sound_blocks: dict[bytes, list[dict[str, Any]]]) -> None:
    """The corpus is wide: of each column it has several values that Arrow takes."""
    events = [event for made in sound_blocks.values() for event in made]
    distinct = {name: {event[name] for event in events} for name in EVENT if name != "unknown_fields"}
    few = {"change": 4, "status": 5, "stream_us": 4, "ttl_removal": 2, "priority": 4, "attempts": 4}
    assert {name for name, found in distinct.items() if len(found) < few.get(name, 6)} == set()


@pytest.mark.parametrize("unsound", [*LINES, *WITH_ENDS, lambda line: line.replace('"MODIFY"', '"OTHER"')])
def test_other_lines_are_left_to_spark(unsound: Callable[[str], str]) -> None:
    line = json.dumps(EVENT_LINE)
    block = encoded([line, unsound(line), line])
    same = canonical_block(encoded([line] * 3))
    assert same is not None
    # Some blocks are only another spelling of an event.
    found = canonical_block(block)
    assert found is None or found.select(["event_id", "change"]).equals(same.select(["event_id", "change"]))
    assert canonical_block(encoded([unsound(line)]) + b"\n") is None or found is not None


def sizes_of(folder: Folder) -> dict[str, int]:
    return {file.path: file.size_bytes for file in folder.files()}


@pytest.mark.parametrize("here_bytes", [0, 1 << 40])
def test_files_that_are_not_sound_leave_nothing(
    here_bytes: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "HERE_BYTES", here_bytes)
    landed = small().landed()
    later = [event | {"created_ms": event["created_ms"] + 86_400_000.0} for event in landed]
    events, out = Folder(str(tmp_path / "in 100%2F+1")), Folder(str(tmp_path / "out"))
    folder = tmp_path / "in 100%2F+1"
    write_lines(folder / "a.json.gz", landed)
    write_lines(folder / "b.json", [*later, *landed])
    write_lines(folder / "long and bad.json", [*landed * 200, "not json"])
    write_lines(folder / "cut.json.gz", landed)
    (folder / "cut.json.gz").write_bytes((folder / "cut.json.gz").read_bytes()[:-9])
    (folder / "bomb.json.gz").write_bytes(gzip.compress(b"0" * (32 * MIB)) * 64)
    (folder / "empty.json").touch()
    sizes = sizes_of(events) | {"gone.json": 1}
    # Every block is written immediately.
    monkeypatch.setattr(sound_files, "HELD_BYTES", 0)
    assert sorted(in_one_process(events, sizes, out).digests) == ["a.json.gz", "b.json"]
    stale = out.files("silver/part")[0].path.replace("0-", "9-")
    out.write(stale, "of an attempt that failed")
    found = write_sound(spark, events, sizes, out, "part")
    assert sorted(found.digests) == ["a.json.gz", "b.json"]
    assert found.events == 3 * len(landed)
    assert found.last_us == (START_SECONDS + 400) * 10**6
    assert sorted(found.silver) == [file.path for file in out.files("silver")]
    names = "day, count(*) as events"
    silver = f"read_parquet('{tmp_path}/out/silver/part/*/*.parquet', hive_partitioning = true)"
    days = query(f"select {names} from {silver} group by day order by day")
    assert [row["events"] for row in days] == [2 * len(landed), len(landed)]
    monkeypatch.setattr(sound_files, "GROUP_BYTES", 100)
    assert list(write_sound(spark, events, sizes, out, "other").digests) == [
        "a.json.gz"
    ]  # Spark splits the rest


def test_each_row_group_of_silver_has_the_range_of_its_creation_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound_files, "ROW_GROUP_ROWS", 2)
    events, out = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    landed = small().landed()[:1] * 5
    lines = [event | {"created_ms": event["created_ms"] + place} for place, event in enumerate(landed)]
    write_lines(tmp_path / "in/a.json", lines[:3])
    write_lines(tmp_path / "in/b.json", lines[3:])
    written = in_one_process(events, sizes_of(events), out).silver
    join_silver(out, written, "joined")
    columns = "row_group_num_rows as rows, stats_max_value::bigint - stats_min_value::bigint as us"
    files = f"parquet_metadata('{tmp_path}/out/silver/*/*/*.parquet') where path_in_schema = 'created_us'"
    groups = query(f"select {columns} from {files} order by file_name, row_group_id")
    assert [tuple(row.values()) for row in groups] == [(2, 1000), (2, 1000), (1, 0)] * 2


def quarantined(summary: dict[str, Any], out: Path) -> set[tuple[Any, ...]]:
    files = (out / "quarantine" / summary["run_id"]).glob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {(row["file"].rpartition("/")[2], row.get("line"), row["reason"], row.get("text")) for row in rows}


def test_a_run_is_the_same_without_arrow(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = [json.dumps(event) for event in small().landed()]
    folder = tmp_path / "in/my 100%2F+1"
    write_lines(folder / "sound.json.gz", landed)
    write_lines(folder / "copies.json", landed[:5])
    unusual = [*LINES, *(change for end, change in zip(ENDS, WITH_ENDS, strict=True) if "put_ms" not in end)]
    for number in range(6):
        lines = [change(line) for change, line in zip(unusual[number::6], landed, strict=False)]
        write_lines(folder / f"{number}.json.gz", [*landed, *lines])
    write_lines(folder / "glued.json", ["".join(landed)])
    write_lines(folder / "cut.json.gz", landed)
    (folder / "cut.json.gz").write_bytes((folder / "cut.json.gz").read_bytes()[:-40])
    found = {}
    monkeypatch.setattr(groups, "HERE_BYTES", 0)
    for name, write in (("arrow", write_sound), ("spark", lambda *_: Sound())):
        monkeypatch.setattr("freshq_pipeline.ingest.silver.write_sound", write)
        out = tmp_path / name
        summary = pipeline(tmp_path / "in", out, max_reject_ratio=1.0, accept_damaged=True)
        names = {file.name.partition("-")[0] for file in (out / "silver").rglob("*.parquet")}
        assert ("part" in names, len(names) > 1) == (True, name == "arrow")
        found[name] = (without_names(summary), all_rows(summary), quarantined(summary, out))
    assert found["arrow"] == found["spark"]
    assert len(found["arrow"][2]) > 5


def in_one_process(events: Folder, sizes: dict[str, int], out: Folder) -> Sound:
    """Write the sound files here, so that the limits of this process hold, and delete what was written."""
    found = sound_files._written(events, out, "part", (0, sorted(sizes.items())))
    assert sorted(found.silver) == [file.path for file in out.files("silver")]
    return found


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_files, "HELD_BYTES", 4 * MIB)
    lines = (json.dumps(EVENT_LINE) + "\n").encode() * 2000
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json.gz").write_bytes(gzip.compress(lines) * 60)  # 64 MB
    events, out = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    before = pa.default_memory_pool()
    tracemalloc.start()
    found = in_one_process(events, sizes_of(events), out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.events == 60 * 2000
    assert len(found.silver) > 4
    assert peak < 32 * MIB
    assert before.max_memory() < 192 * MIB


def test_many_small_files_are_read_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = small().landed()
    for number in range(7):
        write_lines(tmp_path / f"in/{number}.json.gz", landed)
    events, out = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    monkeypatch.setattr(groups, "FILES_HERE", 3)
    found = write_sound(spark, events, sizes_of(events), out, "part")
    assert sorted(found.digests) == [file.path for file in events.files()]
    assert found.events == 7 * len(landed)
    assert sorted(found.silver) == [file.path for file in out.files("silver")]
    assert len(found.silver) == 3


def test_groups_are_of_about_the_same_size() -> None:
    sizes = {f"{number:02}": 1 + number for number in range(40)}
    groups = grouped(sizes, 4)
    assert [number for number, _ in groups] == [0, 1, 2, 3]
    assert sorted(file for _, files in groups for file in files) == sorted(sizes.items())
    filled = [sum(size for _, size in files) for _, files in groups]
    assert max(filled) - min(filled) < 10
    assert len(grouped({"a": 1}, 4)) == 1
    assert len(grouped(dict.fromkeys(map(str, range(64)), 1 << 30), 4)) == 64


@pytest.fixture
def peak_mib() -> Callable[[], float]:
    """Measure the peak of Python's memory from here on."""
    tracemalloc.start()

    def peak() -> float:
        used = tracemalloc.get_traced_memory()[1] / MIB
        tracemalloc.stop()
        return used

    return peak


def test_oversized_files_are_found(
    spark: SparkSession, tmp_path: Path, peak_mib: Callable[[], float]
) -> None:
    noise = random.Random(1).randbytes(MIB // 4)
    zeros = gzip.compress(bytes(32 * MIB))
    contents = {
        "many members.gz": zeros * 8,
        "ordinary ends.gz": gzip.compress(noise) + zeros * 8 + gzip.compress(noise),
        "ordinary head.gz": gzip.compress(noise + bytes(64 * MIB)),
        "cut.gz": (zeros * 8)[:-9],
        "twice.gz": gzip.compress(zeros * 8),
        "ordinary.gz": gzip.compress(noise * 2),
        "little.gz": gzip.compress(bytes(32 * MIB)),  # to 32 MiB: harmless
        "cut and ordinary.gz": gzip.compress(noise)[:-4] + b"\xff" * 4,
        "no gzip.gz": noise,
        "text": bytes(2 * MIB),
    }
    for name, content in contents.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    events, out = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    tracemalloc.reset_peak()
    found = prepare(spark, events, sizes_of(events), Format.LANDED, out, "salvage")
    assert peak_mib() < 96  # of all members together 256 MiB
    oversized = {one.path: one for one in found if one.damage is not None and one.damage.problem == OVERSIZED}
    expected = ["cut.gz", "many members.gz", "ordinary ends.gz", "ordinary head.gz", "twice.gz"]
    assert sorted(oversized) == expected
    assert {one.copy for one in oversized.values()} == {None}
    assert [one.path for one in found if one.damage and one.path not in oversized] == ["cut and ordinary.gz"]


def test_the_lines_of_a_damaged_file_are_copied_in_little_memory(
    spark: SparkSession, tmp_path: Path, peak_mib: Callable[[], float]
) -> None:
    line = b"x" * 99 + b"\n"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(line * (64 * MIB // 100))[:-9])
    events, out = Folder(str(tmp_path)), Folder(str(tmp_path / "out"))
    tracemalloc.reset_peak()
    (cut,) = prepare(spark, events, sizes_of(events), Format.LANDED, out, "salvage")
    assert peak_mib() < 24
    assert cut.damage is not None
    assert cut.damage.problem == "truncated gzip"
    copied = (tmp_path / "out" / str(cut.copy)).read_bytes().splitlines()
    assert len(copied) == cut.damage.lines > 600_000
    assert {row.split(b"\t")[2] for row in copied} == {line.strip()}


def test_a_file_that_takes_all_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size_bytes in (("long.gz", 1000), ("short.json", 20_000), ("empty", 0)):
        (tmp_path / name).write_bytes(b"x" * size_bytes)
    events = Folder(str(tmp_path))

    def fail(*_: object) -> Ingested:
        raise PySparkException("scala.MatchError: java.lang.OutOfMemoryError: Java heap space")

    monkeypatch.setattr(silver, "prepare", fail)
    message = f"the largest file is {tmp_path}/short.json. Give more --memory"
    with pytest.raises(BadInput, match=re.escape(message)):
        silver.ingest(None, events, sizes_of(events), Format.STREAMS, Folder(str(tmp_path / "out")), "run")  # type: ignore[arg-type]  # without a session nothing is read


ATTRIBUTES: dict[str, Any] = {
    "customer": {"S": "secret"},
    "tags": {"L": [{"S": "x"}]},
    "gone": {"NULL": True},
}


def with_attributes() -> Recording:
    """Return a task that has attributes of the application when it is claimed, and one without."""
    tape = Recording()
    tape.put(0, "a")
    tape.items["a"] = tape.items["a"] | ATTRIBUTES
    tape.take(1, "a")
    tape.put(2, "b")
    return tape


@pytest.mark.parametrize("form", [Format.STREAMS, Format.KINESIS, Format.EXPORT])
@pytest.mark.parametrize("copied", [True, False])
def test_names_are_kept_without_values(
    form: Format, copied: bool, spark: SparkSession, tmp_path: Path
) -> None:
    lines = with_attributes().lines(form)
    write_lines(tmp_path / "a.json", lines)
    events = read_by_spark(spark, tmp_path / "a.json", form, copied=copied)
    rows = events.select("task_id", "status", "problem", "unknown_fields").collect()
    assert [row["problem"] for row in rows] == [None] * len(lines)
    assert "secret" not in str(rows)
    found = {(row["task_id"], row["status"]): row["unknown_fields"] for row in rows}
    assert found.pop(("b", "PENDING")) is None
    assert found[("a", "TAKEN")] == dict.fromkeys(ATTRIBUTES)


def test_names_are_counted(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = with_attributes()
    write_lines(tmp_path / "in/a.json", tape.records)
    summary = pipeline(tmp_path / "in", tmp_path / "out", Format.STREAMS)
    assert (summary["events_with_unknown_fields"], summary["events_distinct"]) == (1, 3)
    assert summary["unknown_fields"] == dict.fromkeys(ATTRIBUTES, 1)
    assert summary["other_unknown_fields"] == 0
    assert "secret" not in json.dumps(summary)
    silver = b"".join(path.read_bytes() for path in (tmp_path / "out/silver").rglob("*.parquet"))
    assert b"customer" in silver
    assert b"secret" not in silver


def test_names_beyond_the_limit_are_counted_together(pipeline: Pipeline, tmp_path: Path) -> None:
    rare = {f"rare {number}": number for number in range(MAX_UNKNOWN_FIELDS + 20)}
    events = [event | {"common": 1} for event in small().landed()[:3]]
    write_lines(tmp_path / "in/1.json", [events[0] | rare, *events[1:]])
    first = pipeline(tmp_path / "in", tmp_path / "out")
    assert len(first["unknown_fields"]) == MAX_UNKNOWN_FIELDS
    assert (first["unknown_fields"]["common"], first["other_unknown_fields"]) == (3, 21)
    more = small().landed()[3] | {f"new {number}": number for number in range(30)}
    write_lines(tmp_path / "in/2.json", [more])
    second = pipeline(tmp_path / "in", tmp_path / "out")
    assert len(second["unknown_fields"]) == MAX_UNKNOWN_FIELDS
    assert (second["unknown_fields"]["common"], second["other_unknown_fields"]) == (3, 21 + 30)


def test_the_most_frequent_names_are_kept() -> None:
    counts = {f"{number:03}": number // 2 for number in range(MAX_UNKNOWN_FIELDS + 3)}
    kept, others = most_frequent(counts)
    assert set(counts) - set(kept) == {"000", "001", "003"}
    assert others == 0 + 0 + 1
    assert most_frequent({"a": 1}) == ({"a": 1}, 0)


def test_the_attributes_of_a_task_are_known() -> None:
    queue = Queue.memory()
    task = known(queue, queue.put({"any": "work"}, group="red", kind="mail", delay_seconds=1).task_id)
    task = replace(
        task, trace_context="00-1", parent_id="p", root_id="r", value=2.0, decay="linear", cost=7.0
    )
    task, keyspace = replace(task, line_class="82zs", successor_record="{}"), Keyspace(1)
    assert set(OWN) == set(mutable_attributes(task, keyspace)) | set(encode(task, keyspace))


def test_a_lease_stays_the_same_when_a_task_waits_behind_it(spark: SparkSession, tmp_path: Path) -> None:
    tokens = ["w:1" + "+" * 32, "w:1" + "0" * 32, "w:1" + "0" * 31 + "+", "w+x:" + "1" * 32]
    for number, token in enumerate([*tokens, *(f"{token}+{'ab' * 16}" for token in tokens)]):
        image = {"taskId": {"S": str(number)}, "taskStatus": {"S": "TAKEN"}, "leaseToken": {"S": token}}
        record = {"eventID": str(number), "eventName": "MODIFY", "dynamodb": {"NewImage": image}}
        with (tmp_path / "a.json").open("a") as file:
            file.write(json.dumps(record) + "\n")
    lines = spark.read.text(str(tmp_path / "a.json"))
    rows = canonical(lines, Format.STREAMS).orderBy("event_id").select("lease", "worker").collect()
    expected = [holder(token) for token in tokens]
    assert [row.asDict() for row in rows] == [*expected, *expected]


WRONG_VALUES: Final = {0: "value not above 0", -2.5: "value not above 0", "NaN": "value not above 0",
                       1e-9: "value not above 0", 1.1e12: "value above 1e+12"}  # fmt: skip


@pytest.mark.parametrize("form", [Format.LANDED, Format.STREAMS])
def test_values_are_whole_millionths(form: Format, spark: SparkSession, tmp_path: Path) -> None:
    values = {**WRONG_VALUES, 0.1: None, 1e-6: None, 1e12: None, None: None}
    tape = Recording()
    for number, value in enumerate(values):
        tape.put(number, f"{number}", value=value, decay="linear" if value else None)
    if form is Format.LANDED:  # the archive lands no NaN
        tape.records[2]["dynamodb"]["NewImage"]["taskValue"] = {"N": "1"}
    lines = tape.lines(form)
    lines[2] |= {"value": "NaN"} if form is Format.LANDED else {}
    write_lines(tmp_path / "a.json", lines)
    rows = read_by_spark(spark, tmp_path / "a.json", form, copied=False).collect()
    assert [row["problem"] for row in rows] == list(values.values())
    assert [row["value_millionths"] for row in rows[-4:]] == [100_000, 1, 10**18, None]
    assert [row["decay"] for row in rows[-2:]] == ["linear", None]
