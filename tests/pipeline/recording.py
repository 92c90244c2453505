"""Lives of tasks as DynamoDB Streams would record them."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from freshq.aws.landing import landed_event
from freshq_pipeline.schemas import Format

# The start of a minute and a day, which makes the expected values simple.
START_SECONDS = 1_767_225_600
RETENTION_SECONDS = 86_400
TTL_IDENTITY = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/QueueTable/stream/2026-01-01T00:00:00.000"


def ms(seconds: float) -> dict[str, str]:
    """Return a time of the recording as an attribute in milliseconds."""
    return {"N": f"{(START_SECONDS + seconds) * 1000:.3f}"}


@dataclass
class Recording:
    """The stream of a table; times are seconds since its start."""

    records: list[dict[str, Any]] = field(default_factory=list)
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: Iterable[int] = field(default_factory=lambda: count(1))

    def put(
        self, at: float, task_id: str, *, max_age: float = 60, group: str | None = None, **more: Any
    ) -> None:
        due = at + more.get("delay", 0)
        item: dict[str, Any] = {
            "taskId": {"S": task_id},
            "taskQueue": {"S": more.get("queue", "default")},
            "taskStatus": {"S": "PENDING"},
            "taskCreated": ms(due),
            "putAt": ms(at),
            "deadline": ms(due + max_age),
            "priority": {"N": str(more.get("priority", 0))},
            "attempts": {"N": "0"},
            "payload": {"S": '"secret }{ payload"'},
        }
        if group is not None:
            item["taskGroup"] = {"S": group}
            item["taskKind"] = {"S": f"kind of {group}"}
        for name, of in (("parentId", "parent"), ("rootId", "root")):
            if more.get(of) is not None:
                item[name] = {"S": more[of]}
        if more.get("value") is not None:
            item["taskValue"] = {"N": f"{more['value']}"}
        if more.get("decay") is not None:
            item["decay"] = {"S": more["decay"]}
        if due > at:
            item["notBefore"] = item["firstDue"] = ms(due)
        self._write(at, item)

    def take(self, at: float, task_id: str, *, holder: str = "w1:a", lease: float = 30) -> None:
        attempts = str(int(self.items[task_id]["attempts"]["N"]) + 1)
        self.change(
            at,
            task_id,
            "TAKEN",
            leaseToken={"S": holder},
            leaseUntil=ms(at + lease),
            attempts={"N": attempts},
        )

    def settle(self, at: float, task_id: str, status: str, **more: Any) -> None:
        """Leave TAKEN for another status."""
        self.change(at, task_id, status, leaseToken=None, leaseUntil=None, **more)

    def change(self, at: float, task_id: str, status: str, **more: Any) -> None:
        item = self.items[task_id] | {"taskStatus": {"S": status}} | more
        self._write(at, {name: value for name, value in item.items() if value is not None})

    def remove(self, at: float, task_id: str, *, by_ttl: bool) -> None:
        record = self._record(at, "REMOVE", task_id, OldImage=self.items.pop(task_id))
        if by_ttl:
            record["userIdentity"] = TTL_IDENTITY
        self.records.append(record)

    def own_record(self, at: float) -> None:
        """Write one of the queue's own records."""
        key = "freshq#control#default"
        image = {"taskId": {"S": key}, "paused": {"BOOL": False}}
        self.records.append(self._record(at, "MODIFY", key, NewImage=image))

    def landed(self) -> list[dict[str, Any]]:
        return [event for record in self.records if (event := landed_event(record)) is not None]

    def lines(self, form: Format) -> list[Any]:
        """Return the part of the recording that a source of this format has."""
        if form is Format.EXPORT:
            return [{"Item": item} for item in self.items.values()]
        if form is Format.KINESIS:
            return self.kinesis()
        return self.landed() if form is Format.LANDED else self.records

    def kinesis(self) -> list[dict[str, Any]]:
        """Return the records as Kinesis has them: in microseconds, without sequence numbers."""
        return [_as_kinesis(record) for record in self.records]

    def _write(self, at: float, item: dict[str, Any]) -> None:
        task_id = item["taskId"]["S"]
        item = item | {"taskUpdated": ms(at)}
        images = {"NewImage": item} | ({"OldImage": self.items[task_id]} if task_id in self.items else {})
        self.records.append(
            self._record(at, "MODIFY" if "OldImage" in images else "INSERT", task_id, **images)
        )
        self.items[task_id] = item

    def _record(self, at: float, name: str, task_id: str, **images: Any) -> dict[str, Any]:
        number = next(iter(self.numbers))
        change = {
            "ApproximateCreationDateTime": int(START_SECONDS + at),
            "exact": START_SECONDS + at,
            "Keys": {"taskId": {"S": task_id}},
            "SequenceNumber": str(9 * 10**20 + number * 7 * 10**19),
            **images,
        }
        return {
            "eventID": f"{number:032x}", "eventName": name, "eventVersion": "1.1",
            "eventSource": "aws:dynamodb", "awsRegion": "eu-west-1", "eventSourceARN": ARN,
            "dynamodb": change,
        }  # fmt: skip


def _as_kinesis(record: dict[str, Any]) -> dict[str, Any]:
    change = dict(record["dynamodb"])
    change["ApproximateCreationDateTime"] = round(change.pop("exact") * 1e6)
    del change["SequenceNumber"]
    rest = {name: value for name, value in record.items() if name not in ("eventVersion", "eventSourceARN")}
    return rest | {"dynamodb": change, "recordFormat": "application/json", "tableName": "QueueTable"}


def write_lines(file: Path, rows: Iterable[Any]) -> None:
    """Write one JSON object per line; text is written unchanged."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    data = "".join(line + "\n" for line in lines).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)


def small() -> Recording:
    """Return lives with every outcome and every way to lose time.

    As of its newest event (at 400 s): a succeeds at once; b retries, then succeeds; c fails; d is cancelled;
    e waits past its deadline, and TTL removes it; f waits past its deadline, but is not removed; g is deleted
    by a client; h is shed by overflow; i's lease expires, and it is claimed again; j waits; k is taken.
    """
    tape = Recording()
    tape.own_record(0)
    tape.put(0, "a", group="red")
    tape.take(1.5, "a")
    tape.settle(3.5, "a", "SUCCESS")
    tape.put(10, "b", group="red", max_age=300)
    tape.take(11, "b")
    tape.settle(12, "b", "PENDING", notBefore=ms(20))
    tape.change(20, "b", "PENDING", notBefore=None)
    tape.take(21, "b", holder="w2:b")
    tape.settle(24, "b", "SUCCESS")
    tape.put(30, "c", group="blue")
    tape.take(31, "c")
    tape.settle(35, "c", "FAILURE")
    tape.put(40, "d", group="blue")
    tape.change(41, "d", "CANCELLED")
    tape.put(50, "e", group="blue", max_age=60)
    tape.put(51, "f", group="blue", max_age=60)
    tape.put(52, "g", max_age=60)
    tape.remove(55.9, "g", by_ttl=False)
    tape.put(60, "h", group="red")
    tape.change(62, "h", "SHED", shedReason={"S": "overflow"})
    tape.put(70, "i", group="red", max_age=400)
    tape.take(71, "i", holder="w1:c", lease=30)
    tape.settle(105, "i", "PENDING")
    tape.take(106, "i", holder="w2:d", lease=30)
    tape.settle(107, "i", "SUCCESS")
    tape.remove(300, "e", by_ttl=True)
    tape.put(390, "j", group="red", max_age=60)
    tape.put(391, "k", group="red", max_age=60)
    tape.take(400, "k", holder="w2:e")
    return tape
