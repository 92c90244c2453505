"""One folder with the events of every kind of source, damage included; all answers are worked out by hand."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, Final

from types_boto3_dynamodb import DynamoDBClient

from freshq import MatchQueue, Queue
from freshq.aws.archive import Archive
from freshq.aws.landing import landed_event
from freshq_pipeline.cluster.pull_queue import pull_match_queue, pull_queue
from tests.conftest import Clock
from tests.pipeline.conftest import Pipeline, Rows, table
from tests.pipeline.recording import START_SECONDS, Recording, write_lines
from tests.support.call_center_shift import CALLERS, LEASE_SECONDS, RESOURCES, STAYS, shift
from tests.support.matching import Desk
from tests.support.streams import enable_stream, stream_records

DAY: Final = 86_400
AS_OF: Final = DAY + 600
BOMB: Final = gzip.compress(b"0" * (32 << 20)) * 64  # 2 MB that inflate to 2 GB
LEDGER: Final = (
    "created", "success", "failure", "cancelled", "shed", "pending", "taken", "difference", "violations",
)  # fmt: skip
DAMAGED: Final = {
    "inflates more than 100 times": 1, "no event_id": 1, "not a JSON record": 1, "truncated gzip": 1,
    "unknown status": 1, "changed more than a day after it was recorded": 1,
    "changed more than ten years before it was recorded": 1,
}  # fmt: skip


def at(seconds: float) -> float:
    """Return a time of the recording in milliseconds."""
    return (START_SECONDS + seconds) * 1000


def done(tape: Recording, task: str, begin: float, end: float, worker: str, status: str = "SUCCESS") -> None:
    tape.take(begin, task, holder=f"{worker}:{begin}")
    tape.settle(end, task, status)


def mail(tape: Recording) -> None:
    """Write six tasks of two days up to as-of, in 14 events, and one after it."""
    mail: dict[str, Any] = {"queue": "mail"}
    tape.put(0, "1", group="red", **mail)
    done(tape, "1", 2, 5, "w1")
    tape.put(10, "2", group="red", **mail)  # expires at 70
    tape.put(20, "3", group="blue", max_age=600, **mail)
    tape.take(21, "3", holder="w2:21", lease=30)
    tape.put(30, "4", max_age=600, **mail)
    tape.change(31, "4", "CANCELLED")
    tape.put(40, "5", max_age=2 * DAY, **mail)  # what becomes of it comes late
    tape.settle(60, "3", "PENDING")  # the lease of w2 expired at 51
    done(tape, "3", 61, 62, "w1", "FAILURE")  # while 5, which is newer, waits
    tape.remove(200, "2", by_ttl=True)
    tape.put(DAY + 10, "6", **mail)  # expires on the second day
    tape.put(DAY + 1000, "7", **mail)


def ship(tape: Recording) -> None:
    """Write two tasks with the ids of others, in 6 events; the older one is claimed first."""
    for number in (0, 1):
        tape.put(number, str(number + 1), queue="ship")
    done(tape, "1", 3, 4, "w1")
    done(tape, "2", 5, 6, "w1")


def orders() -> list[dict[str, Any]]:
    """Return 5 events of a record of an attached table that is cancelled in one queue and done in another."""
    tape = Recording()
    tape.put(0, "1", queue="orders")
    tape.change(1, "1", "CANCELLED")
    tape.put(2, "1", queue="returns")
    done(tape, "1", 3, 4, "w1")
    events = [landed_event(attached(record), "id") for record in tape.records]
    return [event | {"event_id": f"attached-{event['event_id']}"} for event in events if event]


def attached(record: dict[str, Any]) -> dict[str, Any]:
    """Return a stream record as if the task were a record of an application's table, with the key `id`."""
    change = dict(record["dynamodb"])
    for name in {"OldImage", "NewImage"} & change.keys():
        image = change[name]
        change[name] = {f"freshq_{part}": value for part, value in image.items()} | {"id": image["taskId"]}
    return record | {"dynamodb": change | {"Keys": {"id": change["Keys"]["taskId"]}}}


def sql_queues(folder: Path, events: Path) -> None:
    """Have two queues of a database do something with the same ids, and pull their 4 and 5 events."""
    address, clock = f"sqlite:///{folder / 'tasks.db'}", Clock(START_SECONDS + 100)
    for name, ends in (("one", ("complete", None)), ("two", ("fail", "cancel"))):
        queue = Queue.sql(address, name=name, clock=clock, max_age_seconds=1e6, history=True)
        queue.create_table()
        for task, end in zip(("1", "2"), ends, strict=True):
            queue.put("payload", task_id=task)
            clock.advance(1)
            if end == "cancel":
                queue.cancel(task)
            elif end is not None:
                (claim,) = queue.claim()
                clock.advance(1)
                getattr(queue, end)(claim)
        queue.close()
        assert pull_queue(f"{address}?name={name}", events).events == {"one": 4, "two": 5}[name]


def sql_matches(folder: Path, events: Path) -> tuple[dict[str, int], int]:
    """Play a shift in a database, pull its 28 events, and return the queue's counts."""
    address, clock = f"sqlite:///{folder / 'agents.db'}", Clock(START_SECONDS + 1000)
    queue = MatchQueue.sql(address, history=True, clock=clock, lease_seconds=LEASE_SECONDS)
    queue.create_table()
    shift(queue, clock)
    assert pull_match_queue(address, events).events == 28
    assert pull_match_queue(address, events).events == 0
    counted = counts(queue)
    queue.close()
    return counted


def table_matches(client: DynamoDBClient, events: Path) -> tuple[str, dict[str, int], int]:
    """Play a shift on a table, archive its 28 events; return the table and the queue's counts."""
    desk = Desk(clock=Clock(START_SECONDS + 2000), client=client)
    queue = desk.queue(lease_seconds=LEASE_SECONDS)
    queue.create_table()
    enable_stream(client, desk.table)
    shift(queue, desk.clock)
    records = list(stream_records(client, desk.table))
    for record in records:
        # The clock of the queue is simulated, that of the stream is not; it tells when Bob gave up.
        record["dynamodb"]["ApproximateCreationDateTime"] = START_SECONDS + 2077
    firehose = Firehose()
    delivery = Archive(firehose, "stream", table="QueueTable").deliver(records, lambda: 60.0)  # type: ignore[arg-type]  # as far as it is used
    assert (delivery.delivered, delivery.error) == (28, None)
    assert delivery.skipped > 0  # entries, names, combinations and questions
    write_lines(events / "archive.json", firehose.lines)
    return desk.table, *counts(queue)


def counts(queue: MatchQueue) -> tuple[dict[str, int], int]:
    """Return how many resources are in each state, and how many callers wait."""
    states = [resource.status.value for resource in queue.resources()]
    return {state: states.count(state) for state in set(states)}, len(list(queue.callers()))


class Firehose:
    """Takes every record."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put_record_batch(self, DeliveryStreamName: str, Records: Any) -> dict[str, Any]:  # noqa: N803 - of boto3
        assert DeliveryStreamName == "stream"
        self.lines += [line for one in Records for line in one["Data"].decode().splitlines()]
        return {"RequestResponses": [{} for _ in Records]}


def damaged(events: Path, known: list[dict[str, Any]]) -> None:
    """Write a gzip bomb, two copies before the end of a truncated file, and five unusable lines."""
    (events / "bomb.json.gz").write_bytes(BOMB)
    packer = zlib.compressobj(wbits=31)
    lines = [json.dumps(event).encode() + b"\n" for event in known]
    whole = packer.compress(b"".join(lines[:2])) + packer.flush(zlib.Z_FULL_FLUSH)
    (events / "cut.json.gz").write_bytes(whole + (packer.compress(b"".join(lines)) + packer.flush())[:40])
    lost = known[0] | {"event_id": "lost", "status": "LOST"}
    # By a clock that is a year ahead: it must not end what waits.
    ahead = known[0] | {"event_id": "ahead", "updated_ms": at(365 * DAY)}
    # By a clock that was never set: it must not wait since then.
    behind = known[0] | {"event_id": "behind", "updated_ms": 0}
    write_lines(events / "damaged.json", ["not json", '{"schema_version": 1}', lost, ahead, behind])


def write_first(folder: Path, client: DynamoDBClient) -> tuple[str, list[Any]]:
    """Write the input of the first run: 102 records, of which 90 are distinct events up to as-of."""
    events = folder / "in"
    tape, numbered = Recording(), Recording()
    mail(tape)
    ship(numbered)
    native = tape.landed()
    also = [event | {"event_id": f"ship-{event['event_id']}"} for event in numbered.landed()]
    native[0] |= {"color": "green"}  # of a newer version
    write_lines(events / "a.json.gz", [*native, *also, native[0], native[-1], *orders()])
    damaged(events, native[1:])
    sql_queues(folder, events)
    in_database = sql_matches(folder, events)
    name, *on_table = table_matches(client, events)
    return name, [in_database, tuple(on_table)]


def write_late(folder: Path) -> None:
    """Write the input of the second run: 2 new events of the first day, and a copy of an old one."""
    tape = Recording()
    mail(tape)
    old = tape.landed()
    tape.take(100, "5", holder="w1:100")
    tape.settle(130, "5", "SUCCESS")
    write_lines(folder / "in/late.json", [*tape.landed()[-2:], old[3]])


def ledger(summary: dict[str, Any], day: str | None = None) -> dict[str, dict[str, int]]:
    """Return the ledger of each queue on a day or in total, without zeros."""
    rows = [row for row in table(summary, "ledger", "queue") if row["day"] == day]
    return {row["queue"]: {name: row[name] for name in LEDGER if row[name]} for row in rows}


def test_every_source_has_its_own_ledger(
    dynamodb_local: DynamoDBClient, pipeline: Pipeline, tmp_path: Path
) -> None:
    name, counted = write_first(tmp_path, dynamodb_local)
    # The queues' own counts: one resource waits and two are matched, as in the ledger, or are available.
    assert counted == [({"QUEUED": 1, "MATCHED": 2, "AVAILABLE": 1}, 1)] * 2
    options = {
        "as_of_ms": round(at(AS_OF)),
        "max_reject_ratio": 0.1,
        "other_order": "ship,none",
        "accept_damaged": True,
    }
    first = pipeline(tmp_path / "in", tmp_path / "out", **options)
    figures = ("read", "distinct", "duplicate", "after_as_of", "too_late", "quarantined", "no_task")
    assert [first[f"events_{figure}"] for figure in figures] == [102, 90, 3, 2, 0, 7, 0]
    assert first["quarantined_by_reason"] == DAMAGED
    assert (first["events_with_unknown_fields"], first["unknown_fields"]) == (2, {"color": 2})
    totals = {
        "mail": {"created": 6, "success": 1, "failure": 1, "cancelled": 1, "shed": 2, "pending": 1},
        "ship": {"created": 2, "success": 2},
        "orders": {"created": 1, "cancelled": 1},
        "returns": {"created": 1, "success": 1},
        "one": {"created": 2, "success": 1, "pending": 1},
        "two": {"created": 2, "failure": 1, "cancelled": 1},
        **dict.fromkeys(("resources", name), RESOURCES),
        **{f"{matches}-callers": {k: n for k, n in CALLERS.items() if n} for matches in ("resources", name)},
    }
    assert ledger(first) == totals
    assert ledger(first, "2026-01-02") == {"mail": {"created": 1, "shed": 1}}
    write_late(tmp_path)
    second = pipeline(tmp_path / "in", tmp_path / "out", **options)
    assert [second[f"events_{figure}"] for figure in figures] == [105, 92, 4, 2, 0, 7, 0]
    totals["mail"] = {"created": 6, "success": 2, "failure": 1, "cancelled": 1, "shed": 2}
    assert ledger(second) == totals
    check_tasks(table(second, "tasks", "queue, task_id"), name)
    check_workers(table(second, "workers", "queue, worker"))
    check_groups(table(second, "groups", "queue, task_group"), name)
    check_minutes(table(second, "minutes", "queue, task_group, minute_ms"))
    assert table(second, "violations", "queue") == []
    # Inversions mean something where the newest is served first: not in ship, which says that it has another
    # order, nor where callers are matched.
    by_queue = {row["queue"]: row["inversions"] for row in second["queues"]}
    assert by_queue == {
        **dict.fromkeys(totals, 0), "mail": 1, "ship": None,
        **{f"{matches}{part}": None for matches in ("resources", name) for part in ("", "-callers")},
    }  # fmt: skip
    assert second["inversions"] == 1


def check_tasks(rows: Rows, name: str) -> None:
    """Check tasks of queues that use the same ids: their outcomes, waits, times in progress and so on."""
    found = {
        (row["queue"], row["task_id"].partition("#")[0], row["created_ms"]): row
        for row in rows
        if row["queue"] != name and row["queue"] != f"{name}-callers"
    }
    assert {row["life"] for row in rows} == {1}
    assert len(rows) == 6 + 2 + 1 + 1 + 2 + 2 + 2 * (6 + 4)
    columns = ("outcome", "wait_seconds", "run_seconds", "attempts", "lease_losses", "inverted", "in_time")
    expected = {
        ("mail", "1", 0): ("success", 2, 3, 1, 0, False, True),
        ("mail", "2", 10): ("shed", None, None, 0, 0, False, False),
        ("mail", "3", 20): ("failure", 1, 40, 2, 1, True, False),
        ("mail", "4", 30): ("cancelled", None, None, 0, 0, False, False),
        ("mail", "5", 40): ("success", 60, 30, 1, 0, False, True),
        ("mail", "6", DAY + 10): ("shed", None, None, 0, 0, False, False),
        ("ship", "1", 0): ("success", 3, 1, 1, 0, None, True),
        ("ship", "2", 1): ("success", 4, 1, 1, 0, None, True),
        ("orders", "1", 0): ("cancelled", None, None, 0, 0, False, False),
        ("returns", "1", 2): ("success", 1, 1, 1, 0, False, True),
        ("one", "1", 100): ("success", 1, 1, 1, 0, False, True),
        ("one", "2", 102): ("pending", None, None, 0, 0, False, False),
        ("two", "1", 103): ("failure", 1, 1, 1, 0, False, False),
        ("two", "2", 105): ("cancelled", None, None, 0, 0, False, False),
        ("resources", "ellen", 1000): ("success", 2, 3, 1, 0, None, True),
        ("resources", "ellen", 1074): ("success", 0, 1, 1, 0, None, True),
        ("resources", "billy", 1001): ("cancelled", 5, 61, 1, 1, None, False),
        ("resources", "billy", 1078): ("taken", 1, None, 1, 0, None, False),
        ("resources", "zoe", 1081): ("pending", 3, 1, 0, 0, None, False),
        ("resources", "max", 1082): ("taken", 1, None, 1, 0, None, False),
        ("resources-callers", "ann", 1069): ("success", 5, 0, 1, 0, None, True),
        ("resources-callers", "bob", 1076): ("cancelled", None, None, 0, 0, None, False),
        ("resources-callers", "cy", 1079): ("success", 0, 0, 1, 0, None, True),
        ("resources-callers", "dora", 1080): ("pending", None, None, 0, 0, None, False),
    }
    expected_at = {(queue, task, at(created)): values for (queue, task, created), values in expected.items()}
    assert {key: tuple(row[column] for column in columns) for key, row in found.items()} == expected_at
    # The table had the same shift, 1000 seconds later.
    shifted = {
        (row["task_id"].partition("#")[0], row["created_ms"] - 1_000_000): tuple(row[one] for one in columns)
        for row in rows
        if row["queue"].startswith(name)
    }
    here = {key[1:]: values for key, values in expected_at.items() if key[0].startswith("resources")}
    assert shifted == here


def check_workers(rows: Rows) -> None:
    """Check which workers claimed, settled and lost leases; for matches, who served the callers."""
    found = {
        (row["queue"], row["worker"]): (row["claims"], row["settles"], row["lease_losses"])
        for row in rows
        if row["queue"] in ("mail", "ship", "returns", "resources", "resources-callers")
    }
    assert found == {
        ("mail", "w1"): (3, 3, 0), ("mail", "w2"): (1, 0, 1), ("ship", "w1"): (2, 2, 0),
        ("returns", "w1"): (1, 1, 0), ("resources", None): (6, 3, 1),
        ("resources-callers", "ellen"): (1, 1, 0), ("resources-callers", "billy"): (1, 1, 0),
    }  # fmt: skip


def check_groups(rows: Rows, name: str) -> None:
    """Check the shares of groups; those of resources are their attributes."""
    found = {
        (row["queue"], row["task_group"]): (row["offered"], row["succeeded"], row["shed"]) for row in rows
    }
    assert {group: counts for (queue, group), counts in found.items() if queue == "mail"} == {
        "red": (2, 1, 1), "blue": (1, 0, 0), None: (3, 1, 1),
    }  # fmt: skip
    mail = [row for row in rows if row["queue"] == "mail"]
    assert round(sum(row["time_share"] for row in mail), 9) == 1
    assert all(row["in_time"] <= row["succeeded"] for row in rows)
    for queue in ("resources", name):
        assert {group: row[0] for (of, group), row in found.items() if of == queue} == STAYS


def check_minutes(rows: Rows) -> None:
    """Check the minutes of the queue mail on the first day, and that every created task was offered."""
    columns = (
        *("offered", "taken", "succeeded", "failed", "cancelled", "shed"),
        *("lease_losses", "backlog", "in_flight"),
    )
    found = {
        (row["task_group"], (row["minute_ms"] - at(0)) / 60_000): tuple(row[column] for column in columns)
        for row in rows
        if row["queue"] == "mail" and row["minute_ms"] < at(DAY)
    }
    assert found == {
        ("red", 0): (2, 1, 1, 0, 0, 0, 0, 1, 0),
        ("red", 1): (0, 0, 0, 0, 0, 1, 0, 0, 0),
        ("blue", 0): (1, 1, 0, 0, 0, 0, 0, 0, 1),
        ("blue", 1): (0, 1, 0, 1, 0, 0, 1, 0, 0),
        (None, 0): (2, 0, 0, 0, 1, 0, 0, 1, 0),
        (None, 1): (0, 1, 0, 0, 0, 0, 0, 0, 1),
        (None, 2): (0, 0, 1, 0, 0, 0, 0, 0, 0),
    }
    assert sum(row["offered"] for row in rows) == 6 + 2 + 1 + 1 + 2 + 2 + 2 * (6 + 4)
    assert [sum(row[name] for row in rows) for name in ("released", "retried")] == [2, 0]
