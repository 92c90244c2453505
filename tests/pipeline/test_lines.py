"""Whatever the bytes of the files, each record is counted once: accepted, a duplicate, or quarantined."""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inflation import MAX_LINE_BYTES
from freshq_pipeline.ingest.records import Lines, is_regular, records_of
from freshq_pipeline.report.page import write_report
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.folder import Folder
from tests.pipeline.conftest import Pipeline, table
from tests.pipeline.recording import Recording, small, write_lines
from tests.pipeline.test_ingest import quarantined

A: Final = b'{"a": "}{", "b": [{"S": "x"}, {"S": "y"}]}'
B: Final = b'{"b": {"c": null}}'


@pytest.mark.parametrize(
    ("line", "records"),
    [
        (A, [A]),
        (A + B, [A, B]),
        (A + b"\t" + B, [A, B]),
        (A + b"," + B, [A, B]),
        (A + b" , \x1e" + B + b"\r\n", [A, B]),
        (A + b" garbage", [A, b"garbage"]),
        (A + b"}", [A, b"}"]),
        (A + b",", [A]),
        (A + b"\x00\x00", [A]),
        (b"\xef\xbb\xbf" + A, [A]),
        (b"garbage " + A + B, [b"garbage " + A, B]),
        (A[:-1] + B, [A[:-1] + B]),
        (A + b"null" + B + b"[1]", [A, b"null", B, b"[1]"]),
        (b'{"a": 1' + b"0" * 5000 + b"}", [b'{"a": 1' + b"0" * 5000 + b"}"]),
        (b"[" * 100_000, [b"[" * 100_000]),
        (b"\xff\xfe{\x00", [b"\xff\xfe{"]),
        (b"", []),
        (b" \t\x0b\r\n", []),
    ],
)
def test_the_records_of_a_line(line: bytes, records: list[bytes]) -> None:
    assert records_of(line) == records


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 1000])
def test_lines_end_in_three_ways_wherever_chunks_end(chunk_bytes: int) -> None:
    text = b"a\r\nb\rc\n\n\r\rd"
    chunks = (text[at : at + chunk_bytes] for at in range(0, len(text), chunk_bytes))
    lines = Lines()
    found = [(number, line.strip()) for number, line in lines.of(chunks)]
    assert found == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b""), (5, b""), (6, b""), (7, b"d")]
    assert (lines.count, lines.size_bytes) == (6, len(text) - 1)


def test_a_line_that_is_too_long_is_cut_between_records() -> None:
    record = b'{"a": "' + b"x" * 1_000_000 + b'"}'
    many = MAX_LINE_BYTES // len(record) * 3
    chunks = iter([b"{}\n", *[record] * many, b"\n", *[b"y" * 1_000_000] * many, b"\n", B])
    lines, found = Lines(), []
    for number, line in lines.of(chunks):
        assert len(line) < MAX_LINE_BYTES + 2_000_000
        found += [(number, one[:4]) for one in records_of(line)]
    assert found == [(1, b"{}"), *[(2, b'{"a"')] * many, (3, b"yyyy"), (4, B[:4])]


@pytest.mark.parametrize(
    ("block", "regular"),
    [
        (A + b"\n" + B + b"\n", False),  # a brace in a string
        (B + b"\n" + B, True),
        (B + b"\n\n" + B, False),
        (B + b"\r\n" + B, False),
        (B + B + b"\n", False),
        (B + b"}\n", False),
        (B[:-1] + b"\n" + B + b"}\n", False),
        (b'{"p":"{"} {"p":"}"}\n', False),
        (b'{"p":{"L":[{"S":"x"},{"N":"1"}]}}\n', True),
        (b"\xef\xbb\xbf" + B, False),
        (B + b"\nx", False),
    ],
)
def test_only_regular_blocks_are_left_to_sparks_reader(block: bytes, regular: bool) -> None:
    assert is_regular(block) is regular


def balanced(summary: dict[str, Any]) -> tuple[int, int, int]:
    """Return how many records were read, distinct and quarantined, given that all are accounted for."""
    parts = ("distinct", "duplicate", "quarantined", "no_task", "after_as_of", "too_late")
    assert summary["events_read"] == sum(summary[f"events_{name}"] for name in parts)
    return summary["events_read"], summary["events_distinct"], summary["events_quarantined"]


def lines_of(form: Format) -> list[bytes]:
    return [
        (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in (small().landed() if form is Format.LANDED else small().lines(form))
    ]


# How the lines of a file may be joined and stored; all hold the same records.
STORED: Final[dict[str, Callable[[list[bytes]], bytes]]] = {
    "a.json": b"\r".join,
    "b.json": b"\r\n".join,
    "c.json": b"\t".join,
    "d.json": b",".join,
    "e.json": b"".join,
    "f.json": lambda lines: b"\xef\xbb\xbf" + b"\n".join(lines),
    "g": lambda lines: gzip.compress(b"\n".join(lines)),
    "h.json.gz": lambda lines: gzip.compress(gzip.compress(b"\n".join(lines))),
    "i.json.gz": lambda lines: gzip.compress(b"\n".join(lines)) + bytes(512),
    "j.json.gz": b"\n".join,
    "k.json.bz2": lambda lines: bz2.compress(b"\n".join(lines)),
    "l.json": lambda lines: lzma.compress(b"\n".join(lines)),
    "m.bz2": lambda lines: (
        gzip.compress(b"\n".join(lines[:5])) + gzip.compress(b"\n" + b"\n".join(lines[5:]))
    ),
    "n.snappy": lambda lines: b"\n".join([*lines, b""]),
}


@pytest.mark.parametrize("form", [Format.LANDED, Format.STREAMS])
@pytest.mark.parametrize("bad", [b"", b"garbage", b'{"unrelated": 1}'])
def test_each_record_is_counted_once(form: Format, bad: bytes, pipeline: Pipeline, tmp_path: Path) -> None:
    lines, folder = lines_of(form), tmp_path / "in/ä b%2F+1"
    folder.mkdir(parents=True)
    (folder / "regular.json").write_bytes(b"\n".join(lines))
    reference = pipeline(tmp_path / "in", tmp_path / "reference", form)
    for name, stored in STORED.items():
        (folder / name).write_bytes(stored([*lines, bad] if bad else lines))
    summary = pipeline(tmp_path / "in", tmp_path / "out", form, max_reject_ratio=1.0)
    count = len(STORED)
    expected = (
        len(lines) * (count + 1) + (count if bad else 0),
        reference["events_distinct"],
        count if bad else 0,
    )
    assert balanced(summary) == expected
    assert summary["events_no_task"] == reference["events_no_task"] * (count + 1)
    found = quarantined(summary, tmp_path / "out")
    assert {(name, text) for name, _, _, text in found} == (
        {(name, bad.decode()) for name in STORED} if bad else set()
    )
    by_name = {name: line for name, line, *_ in found}
    assert [by_name.get(name) for name in ("a.json", "b.json", "c.json")] == (
        [len(lines) + 1, len(lines) + 1, 1] if bad else [None] * 3
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (bz2.compress(b"{}\n" * 1000)[:-20], "truncated bzip2"),
        (bz2.compress(b"{}\n" * 1000)[:20] + b"x" * 40, "damaged bzip2"),
        (gzip.compress(b"{}\n") + b"garbage", "damaged gzip"),
        (gzip.compress(gzip.compress(b"{}\n" * 1000)[:-9]), "truncated gzip"),
        (
            b"\x28\xb5\x2f\xfd" + b"x" * 50,
            "zstd, which is not supported: decompress it, or compress it with gzip",
        ),
        (b"PK\x03\x04" + b"x" * 50, "zip, which is not supported: decompress it, or compress it with gzip"),
    ],
    ids=["cut bzip2", "bad bzip2", "text behind gzip", "cut gzip in gzip", "zstd", "zip"],
)
def test_a_file_that_cannot_be_decompressed_is_damaged(
    content: bytes, problem: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_bytes(b"\n".join(lines_of(Format.LANDED)))
    (tmp_path / "in/b.bin").write_bytes(content)
    with pytest.raises(BadInput, match=problem):
        pipeline(tmp_path / "in", tmp_path / "out", max_reject_ratio=1.0)
    summary = pipeline(tmp_path / "in", tmp_path / "out", max_reject_ratio=1.0, accept_damaged=True)
    balanced(summary)
    assert summary["quarantined_by_reason"][problem] == 1
    assert summary["files_damaged"] == 1


def test_random_bytes_are_accounted_for(pipeline: Pipeline, tmp_path: Path) -> None:
    generator, lines = random.Random(47), lines_of(Format.LANDED)
    between = [
        b"\n",
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b",",
        b"",
        b" x ",
        b"\x00",
        b"\xff\xfe",
        b"}",
        b"[",
        b"\n\n",
    ]
    (tmp_path / "in").mkdir()
    for number in range(40):
        content = b"".join(one + generator.choice(between) for one in lines)
        for _ in range(generator.choice((0, 0, 3))):
            at = generator.randrange(len(content))
            content = content[:at] + generator.randbytes(1) + content[at + 1 :]
        compress = generator.choice((bytes, gzip.compress, bz2.compress))
        suffix = generator.choice(("", ".gz", ".bz2", ".json"))
        (tmp_path / f"in/{number}{suffix}").write_bytes(compress(content))
    summary = pipeline(tmp_path / "in", tmp_path / "out", max_reject_ratio=1.0)
    read, distinct, bad = balanced(summary)
    assert read > 20 * len(lines)
    assert distinct >= len(lines)
    assert bad > 0


# In milliseconds: before 1970, in 2262, in 10000, and far beyond every calendar.
FAR: Final = (-1.0, -62_135_596_800_000.0, 9_214_646_400_000.0, 253_402_300_800_000.0, 1e17, 1e300)
NAMES: Final = ("stream", "updated", "created", "put", "deadline", "lease_until", "not_before")


@pytest.mark.parametrize("form", [Format.LANDED, Format.STREAMS])
def test_times_out_of_range_are_quarantined_or_carried(
    form: Format, pipeline: Pipeline, tmp_path: Path
) -> None:
    tape = small()
    lines: list[Any] = tape.landed() if form is Format.LANDED else tape.lines(form)
    number = 0
    for name in NAMES:
        for value in FAR:
            number += 1
            lines.append(far(tape, form, name, value, number))
    folder = tmp_path / "in"
    write_lines(folder / "a.json", lines)
    summary = pipeline(folder, tmp_path / "out", form, max_reject_ratio=1.0)
    balanced(summary)
    reasons = summary["quarantined_by_reason"]
    early = {name: count for name, count in reasons.items() if name.endswith("before 1970")}
    late = {name: count for name, count in reasons.items() if name.endswith("in 2262 or later")}
    assert set(early.values()) == {2}
    assert len(early) >= 6
    assert {"stream in 2262 or later", "changed in 2262 or later", "created in 2262 or later"} <= set(late)
    assert not any(word in reason for reason in late for word in ("deadline", "lease", "not_before"))
    assert summary["as_of_ms"] < FAR[2]
    write_report(Folder(str(tmp_path / "out")))


def far(tape: Recording, form: Format, name: str, value: float, number: int) -> Any:
    """Return a put of a task of its own, with a time out of range."""
    if form is Format.LANDED:
        return tape.landed()[0] | {
            "task_id": f"far-{number}",
            "event_id": f"far-{number}",
            f"{name}_ms": value,
        }
    record = json.loads(
        json.dumps(tape.records[1]).replace('"taskId": {"S": "a"}', f'"taskId": {{"S": "far-{number}"}}')
    )
    attribute = {
        "updated": "taskUpdated",
        "created": "taskCreated",
        "put": "putAt",
        "lease_until": "leaseUntil",
    }
    record["eventID"] = f"far-{number}"
    if name == "stream":
        record["dynamodb"]["ApproximateCreationDateTime"] = value / 1000
    else:
        camel = attribute.get(name, {"deadline": "deadline", "not_before": "notBefore"}.get(name, ""))
        record["dynamodb"]["NewImage"][camel] = {"N": f"{value:f}"}
    return record


# Names that mean something to Hive, a file system, a shell or a format.
ODD_NAMES: Final = (
    "__HIVE_DEFAULT_PARTITION__", "", ".", "..", "_x", ".x", "%2F", "%", "a/b", "a=b", "a:b", "a b", " ",
    "\t\n", "null", "*", "\\", "day=2026-01-01", "\x7f", "2026", "1e3", "True", "+", "x" * 255, "/" * 80,
    "é" * 120, "🙂" * 300,
)  # fmt: skip


def test_names_are_kept_apart_whatever_they_mean_elsewhere(pipeline: Pipeline, tmp_path: Path) -> None:
    events = [
        event
        | {"task_id": f"{number}", "event_id": f"{number}-{event['event_id']}"}
        | dict.fromkeys(("queue", "group", "kind", "worker"), name)
        for number, name in enumerate(ODD_NAMES)
        for event in small().landed()
        if event["task_id"] == "a"
    ]
    write_lines(tmp_path / "in/a.json", events[:-1])
    pipeline(tmp_path / "in", tmp_path / "out")
    write_lines(tmp_path / "in/b.json", events[-1:])
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    assert balanced(summary) == (len(events), len(events), 0)
    assert summary["ledger_violations"] == 0
    rows = table(summary, "tasks", "task_id::int")
    assert [row["task_group"] for row in rows] == list(ODD_NAMES)
    queues = [row["queue"] for row in rows]
    assert sorted(row["queue"] for row in summary["queues"]) == sorted(queues)
    assert len(set(queues)) == len(ODD_NAMES)
    for queue, name in zip(queues, ODD_NAMES, strict=True):
        kept = name not in ("", "__HIVE_DEFAULT_PARTITION__") and len(name.encode()) <= 80
        assert queue == name if kept else queue.startswith(f"{name[:20]}%")
    write_report(Folder(str(tmp_path / "out")))
