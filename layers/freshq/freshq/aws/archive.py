"""Takes the table's change stream to a Firehose delivery stream: one narrow JSON line a change."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.aws.landing import landed_event
from freshq.errors import StoreError
from freshq.policy.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from types_boto3_firehose import FirehoseClient

# Firehose bills each record as if it had a multiple of 5 KB: a dozen events fill one.
PACK_BYTES: Final = 5 * 1024
# Service quota of PutRecordBatch.
BATCH_RECORDS: Final = 500
BACKOFF: Final = Backoff(base_seconds=0.1, cap_seconds=2.0)
TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Pack:
    """Some events in one Firehose record.

    Attributes:
        data: A line of JSON for each event.
        sequence: Sequence number of the first change in it.
        events: How many there are.
    """

    data: bytes
    sequence: str
    events: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a batch of stream records.

    Attributes:
        delivered: Events that Firehose has.
        skipped: Records that are about no task.
        failed_from: Sequence number of the first record that is to be sent again; None if there is none.
        error: Why.
    """

    delivered: int
    skipped: int
    failed_from: str | None = None
    error: str | None = None


class Archive:
    """Delivers changes of tasks, in the stream's order, at least once."""

    def __init__(
        self, client: FirehoseClient, delivery_stream: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Use a delivery stream.

        Args:
            client: A boto3 client.
            delivery_stream: Its name.
            sleep: Waits for some seconds.
        """
        self._client = client
        self._delivery_stream = delivery_stream
        self._sleep = sleep

    def deliver(self, records: Sequence[Mapping[str, Any]]) -> Delivery:
        """Send what a batch of stream records says about tasks.

        A record that cannot be read ends the batch before it: the event source splits the batch until
        it is alone, and puts it where undeliverable ones go.

        Args:
            records: As Lambda hands them over.
        """
        events: list[tuple[str, dict[str, Any]]] = []
        skipped, broken, error = 0, None, None
        for record in records:
            sequence = str(record.get("dynamodb", {}).get("SequenceNumber", ""))
            try:
                event = landed_event(record)
            except ValueError as unreadable:
                broken, error = sequence, str(unreadable)
                break
            if event is None:
                skipped += 1
            else:
                events.append((sequence, event))
        delivered = 0
        packs = list(packed(events))
        for start in range(0, len(packs), BATCH_RECORDS):
            batch = packs[start : start + BATCH_RECORDS]
            refused = self._send(batch)
            if refused is not None:
                delivered += sum(pack.events for pack in batch[: batch.index(refused)])
                return Delivery(delivered, skipped, refused.sequence, "Firehose did not take a record")
            delivered += sum(pack.events for pack in batch)
        return Delivery(delivered, skipped, broken, error)

    def _send(self, batch: Sequence[Pack]) -> Pack | None:
        """Send packs, those that were refused once more; return the first that stayed refused."""
        left = list(batch)
        for attempt in range(1, TRIES + 1):
            response = self._client.put_record_batch(
                DeliveryStreamName=self._delivery_stream, Records=[{"Data": pack.data} for pack in left]
            )
            answers = response["RequestResponses"]
            if len(answers) != len(left):
                msg = f"Firehose answered for {len(answers)} of {len(left)} records"
                raise StoreError(msg)
            left = [pack for pack, answer in zip(left, answers, strict=True) if answer.get("ErrorCode")]
            if not left:
                return None
            if attempt < TRIES:
                self._sleep(BACKOFF.delay_seconds(attempt, 1.0))
        return left[0]


def packed(events: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Pack]:
    """Yield events as packs of at most `PACK_BYTES`, larger only where one event alone is.

    Args:
        events: Each with the sequence number of its change.
    """
    lines: list[bytes] = []
    first = ""
    for sequence, event in events:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        if lines and sum(map(len, lines)) + len(line) > PACK_BYTES:
            yield Pack(b"".join(lines), first, len(lines))
            lines = []
        if not lines:
            first = sequence
        lines.append(line)
    if lines:
        yield Pack(b"".join(lines), first, len(lines))
