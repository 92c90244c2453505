"""Every minute: recovers tasks, rings for forgotten work, and emits the gauges."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from freshq.aws.environment import connect_at_init, dynamodb_client
from freshq.aws.invocation import Connected
from freshq.aws.observability import (
    append_log_keys,
    count,
    count_dead_letters,
    fields,
    logger,
    measure_seconds,
    observed,
)
from freshq.aws.wakeup import PASSES_UNDER_WAY, SWITCHED_OFF, DoorbellSettings, Ring, WakeUp
from freshq.errors import StoreError
from freshq.queue.gauges import gauges_of
from freshq.worker.report import METRIC_OF_OUTCOME

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats

# Alarms compare these metrics, and CloudWatch cannot fill in a metric without any value.
COUNTED_EVERY_MINUTE: Final = ("TasksClaimed", *METRIC_OF_OUTCOME.values(), "EventsArchived")


@Connected
def _connections() -> tuple[BaseQueue, WakeUp]:
    settings = DoorbellSettings.load()
    client = dynamodb_client()
    wakeup = WakeUp.connect(settings, settings.process_tasks_topic_arn, client)
    return settings.queue(client), wakeup


connect_at_init(_connections)


@observed
def handler(_event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Sweep once, and answer with the state of the queue.

    A failed recovery stops neither the gauges nor the ring, and the kill switch does not stop the gauges. The
    failure is raised at the end.

    Raises:
        StoreError: If the recovery failed, or the store does not answer.
    """
    ring = Ring(reason="sweep")
    append_log_keys(chain=ring.chain)
    recovered, failure = _recovered()
    queue, wakeup = _connections()
    stats = queue.stats(approximate=True)
    _emit_gauges(queue, stats)
    stopped = wakeup.switch.stops()
    count("KillSwitchStops", stopped)
    skipped = _reason_to_skip(stats, stopped=stopped)
    if skipped is None:
        wakeup.ring(ring)
    answer = {"recovered": recovered, "rang": skipped is None, "skipped": skipped, "stats": asdict(stats)}
    logger.info("swept", **fields(found=answer))
    if failure is not None:
        raise failure
    return answer


def _emit_gauges(queue: BaseQueue, stats: Stats) -> None:
    """Emit the gauges of the queue, without ages while nothing is pending."""
    for name, value in gauges_of(queue, stats).items():
        (measure_seconds if name.endswith("PendingSeconds") else count)(name, value)
    for name in COUNTED_EVERY_MINUTE:
        count(name, 0)


def _recovered() -> tuple[int, StoreError | None]:
    """Recover tasks; return their number and the failure, because waiting work needs its ring regardless."""
    queue, _wakeup = _connections()
    failure = None
    recovered = 0
    try:
        recovered = queue.admin.recover()
    except StoreError as error:
        logger.exception("recovery failed")
        failure = error
    count("TasksRecovered", recovered)
    count_dead_letters(queue)
    return recovered, failure


def _reason_to_skip(stats: Stats, *, stopped: bool) -> str | None:
    queue, wakeup = _connections()
    if stats.pending == 0:
        return "no claimable tasks"
    if queue.paused():
        return "the queue is paused"
    if stopped:
        return SWITCHED_OFF
    return PASSES_UNDER_WAY if wakeup.enough_passes() else None
