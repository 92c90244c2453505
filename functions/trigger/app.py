"""Rings for a worker pass: for new tasks, and for a pass that left work behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.aws.environment import connect_at_init, dynamodb_client
from freshq.aws.invocation import Connected, part_of, records_of, text_of
from freshq.aws.observability import append_log_keys, count, fields, logger, observed
from freshq.aws.wakeup import SWITCHED_OFF, DoorbellSettings, Ring, WakeUp, parse_rings
from freshq.model.task import OVER, TaskStatus
from freshq.stores.dynamodb.schema import ATTACHED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext


@Connected
def _settings() -> DoorbellSettings:
    return DoorbellSettings.load()


@Connected
def _wakeup() -> WakeUp:
    wakeup = WakeUp.connect(_settings(), _settings().process_tasks_topic_arn, dynamodb_client())
    wakeup.sns()  # most invocations ring
    return wakeup


connect_at_init(_wakeup)


@observed
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Ring, or say why not. Errors are raised, so that the event source retries."""
    ring = _ring_for(event)
    if ring is not None:
        append_log_keys(hop=ring.hop, chain=ring.chain)
    skipped = _reason_to_skip(ring)
    if ring is not None and skipped is None:
        _wakeup().ring(ring)
    count("RingsSkipped" if skipped else "Rings")
    logger.info("no ring" if skipped else "rang", **fields(skipped=skipped))
    return {"rang": skipped is None, "skipped": skipped}


def _ring_for(event: dict[str, Any]) -> Ring | None:
    """Return the ring for an event; None for a stream batch without new claimable tasks."""
    records = records_of(event)
    first = records[0] if records else {}
    source = text_of(first, "eventSource") or text_of(first, "EventSource")
    if source == "aws:dynamodb":
        is_new = any(map(_is_new_work, records))
        return Ring(reason="insert") if is_new else None
    if source == "aws:sns":
        return max(parse_rings(event), key=lambda ring: ring.hop)
    msg = f"event: neither a DynamoDB stream nor an SNS event (Records[0] comes from {source!r:.60})"
    raise ValueError(msg)


def _is_new_work(record: Mapping[str, Any]) -> bool:
    """Return whether a task became claimable: it is new, or had ended, or was delayed or stale before."""
    change, name = part_of(record, "dynamodb"), text_of(record, "eventName")
    new, old = part_of(change, "NewImage"), part_of(change, "OldImage")
    prefix = ATTACHED_PREFIX if _settings().attach_key else ""
    if _status(new, prefix) != TaskStatus.PENDING or f"{prefix}pendingShard" not in new:
        return False
    if name != "MODIFY":
        return name == "INSERT"
    before = _status(old, prefix)
    if before == TaskStatus.PENDING:  # a put over a stale task begins anew
        put_at = f"{prefix}putAt"
        return f"{prefix}pendingShard" not in old or old.get(put_at) != new.get(put_at)
    # A put or a redrive makes a finished task claimable. An application's record has no status before its
    # first put.
    return before in OVER or (before is None and bool(prefix))


def _status(image: Mapping[str, Any], prefix: str) -> str | None:
    """Return the status in an image of a stream record, which has the type of each value."""
    return text_of(part_of(image, f"{prefix}taskStatus"), "S")


def _reason_to_skip(ring: Ring | None) -> str | None:
    if ring is None:
        return "no new claimable tasks"
    if ring.reason == "tail_call":  # the calling pass may still hold its slot, but claims nothing more
        return SWITCHED_OFF if _wakeup().switch.stops() else None
    return _wakeup().reason_not_to_ring()
