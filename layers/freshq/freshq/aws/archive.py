"""The archive: delivers the table's change stream to Firehose, as one JSON line per change."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import Field

from freshq.aws.environment import LONGEST_DELIVERY_SECONDS, EnvironmentSettings
from freshq.aws.invocation import part_of, table_of, text_of
from freshq.aws.landing import landed_events, match_events
from freshq.errors import StoreError
from freshq.policy.retry import Backoff, CallRetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from types_boto3_firehose import FirehoseClient

T = TypeVar("T")
# Firehose bills every record as a multiple of 5 KB, which is about a dozen events.
PACK_BYTES: Final = 5 * 1024
# Service quotas of PutRecordBatch, 500 records and 4 MiB. It refuses a larger batch as a whole, each time.
BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 4_000_000
# The keys of a table of `MatchQueue`.
MATCH_KEYS: Final = frozenset({"pk", "sk"})
RETRY: Final = CallRetry(max_tries=5, backoff=Backoff(base_seconds=0.1, cap_seconds=2.0))


class ArchiveSettings(EnvironmentSettings):
    """Settings of the archive; it needs no settings of the queue.

    Attributes:
        delivery_stream: Name of the Firehose delivery stream.
        table: Name of the table of tasks.
        attach_key: Hash key of an application's table that freshq is attached to; empty for a table of
            freshq's own.
    """

    delivery_stream: Annotated[str, Field(min_length=1)]
    table: Annotated[str, Field(min_length=3)]
    attach_key: str = ""


@dataclass(frozen=True, slots=True)
class Pack:
    """Some events in one Firehose record.

    Attributes:
        data: One line of JSON per event.
        sequence: Sequence number of the first change.
        events: Number of events.
    """

    data: bytes
    sequence: str
    events: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a delivery.

    Attributes:
        delivered: Number of events that Firehose accepted.
        skipped: Number of records of other items than tasks, waiting resources and callers.
        failed_from: Sequence number of the first record to send again; None if all were delivered.
        error: Reason to send it again.
        unreadable: Why records could not be read, each with its sequence number.
    """

    delivered: int
    skipped: int
    failed_from: str | None = None
    error: str | None = None
    unreadable: Sequence[str] = ()


class Archive:
    """Delivers changes of tasks in the order of the stream, at least once."""

    def __init__(
        self,
        client: FirehoseClient,
        delivery_stream: str,
        sleep: Callable[[float], None] = time.sleep,
        key: str | None = None,
        table: str = "",
    ) -> None:
        """Use a delivery stream.

        Args:
            client: A boto3 client.
            delivery_stream: Name of the delivery stream.
            sleep: Waits for a number of seconds.
            key: The hash key of an attached table; None for a table of freshq's own.
            table: Name of the queue's table. Records of another table may come from `MatchQueue`.
        """
        self._key = key
        self._table = table
        self._client = client
        self._delivery_stream = delivery_stream
        self._sleep = sleep

    def deliver(self, records: Iterable[Mapping[str, Any]], seconds_left: Callable[[], float]) -> Delivery:
        """Deliver the events of stream records.

        An unreadable record is delivered as the reason, which the pipeline quarantines. If it were
        sent again, it would block the other records of its shard.

        Args:
            records: The records as Lambda passes them.
            seconds_left: Returns the remaining time. Retries stop when the remaining time is too short for a
                call.

        Raises:
            StoreError: If the answer of Firehose does not match the request.
        """
        events, skipped, unreadable = self._read(records)
        delivered = 0
        for batch in grouped(packed(events), lambda pack: len(pack.data), BATCH_BYTES, BATCH_RECORDS):
            rejected = self._send(batch, seconds_left)
            accepted = batch if rejected is None else batch[: batch.index(rejected)]
            delivered += sum(pack.events for pack in accepted)
            if rejected is not None:
                error = "Firehose did not accept a record"
                return Delivery(delivered, skipped, rejected.sequence, error, unreadable)
        return Delivery(delivered, skipped, unreadable=unreadable)

    def _read(
        self, records: Iterable[Mapping[str, Any]]
    ) -> tuple[list[tuple[str, dict[str, Any]]], int, list[str]]:
        """Return the events of records by sequence number, how many had none, and which were unreadable."""
        events: list[tuple[str, dict[str, Any]]] = []
        skipped, unreadable = 0, list[str]()
        for record in records:
            sequence = ""
            try:
                sequence = text_of(part_of(record, "dynamodb"), "SequenceNumber") or ""
                found = self._events_of(record)
            except ValueError as error:
                unreadable.append(f"{sequence}: {error}")
                found = [{"sequence": sequence, "unreadable": str(error)}]
            skipped += not found
            events += ((sequence, event) for event in found)
        return events, skipped, unreadable

    def _events_of(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the events of a stream record.

        Raises:
            ValueError: If it is malformed.
        """
        table = table_of(record)
        keys = part_of(part_of(record, "dynamodb"), "Keys")
        if table != self._table and keys.keys() == MATCH_KEYS:
            return match_events(record, table)
        return landed_events(record, self._key)

    def _send(self, batch: Sequence[Pack], seconds_left: Callable[[], float]) -> Pack | None:
        """Send packs, retry the rejected ones, and return the first pack that is rejected every time."""

        def send(packs: Sequence[Pack]) -> Sequence[Pack]:
            return self._put(packs) if seconds_left() >= LONGEST_DELIVERY_SECONDS else packs

        left = RETRY.send_all(batch, send, sleep=self._sleep, uniform=lambda: 1.0)
        return left[0] if left else None

    def _put(self, packs: Sequence[Pack]) -> Sequence[Pack]:
        """Send packs once, and return the packs that Firehose rejects."""
        response = self._client.put_record_batch(
            DeliveryStreamName=self._delivery_stream, Records=[{"Data": pack.data} for pack in packs]
        )
        answers = response["RequestResponses"]
        if len(answers) != len(packs):
            msg = f"Firehose answered for {len(answers)} of {len(packs)} records"
            raise StoreError(msg)
        return [pack for pack, answer in zip(packs, answers, strict=True) if answer.get("ErrorCode")]


def packed(events: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Pack]:
    """Yield events in packs of at most `PACK_BYTES`; a pack is larger only if a single event is.

    Args:
        events: Events, each with the sequence number of its change.
    """
    lines = (
        (sequence, json.dumps(event, separators=(",", ":")).encode() + b"\n") for sequence, event in events
    )
    for pack in grouped(lines, lambda line: len(line[1]), PACK_BYTES):
        yield Pack(b"".join(data for _sequence, data in pack), pack[0][0], len(pack))


def grouped(
    things: Iterable[T], size_bytes: Callable[[T], int], max_bytes: int, max_count: float = math.inf
) -> Iterator[list[T]]:
    """Yield things in groups within both limits; a thing larger than `max_bytes` is a group of its own."""
    group, group_bytes = list[T](), 0
    for thing in things:
        added = size_bytes(thing)
        if group and (group_bytes + added > max_bytes or len(group) >= max_count):
            yield group
            group, group_bytes = [], 0
        group.append(thing)
        group_bytes += added
    if group:
        yield group
