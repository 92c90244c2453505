"""Every minute: recovers tasks, rings for forgotten work, and emits the gauges."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from freshq.aws.observability import count, emit_gauges, logger, metrics, tracer
from freshq.aws.settings import DoorbellSettings
from freshq.aws.wakeup import Ring, WakeUp

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.queue.queue import Queue


@cache
def _connections() -> tuple[Queue, WakeUp]:
    settings = DoorbellSettings.load()
    return settings.queue(), WakeUp.connect(settings, settings.process_tasks_topic_arn)


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(_event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Sweep once, and answer with the state of the queue."""
    queue, wakeup = _connections()
    recovered = queue.recover()
    count("TasksRecovered", recovered)
    stats = queue.stats(approximate=True)
    emit_gauges(stats)
    if stats.pending == 0:
        skipped: str | None = "no claimable tasks"
    elif queue.paused:
        skipped = "the queue is paused"
    else:
        skipped = wakeup.reason_not_to_ring()
    if skipped is None:
        wakeup.ring(Ring(reason="sweep"))
    answer = {"recovered": recovered, "rang": skipped is None, "skipped": skipped, "stats": asdict(stats)}
    logger.info("swept", found=answer)
    return answer
