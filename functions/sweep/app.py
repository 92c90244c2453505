"""Every minute: bring back orphans, bring in what is due, ring for forgotten work, and measure the queue."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import boto3

from freshq.doorbell import Doorbell, KillSwitch, Ring
from freshq.observability import count, gauge, logger, metrics, tracer
from freshq.settings import DoorbellSettings
from freshq.stores.dynamodb.passes import WorkerPasses

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.queue import Queue
    from freshq.stores.base import Stats


@dataclass(frozen=True)
class Connections:
    """What this function talks to."""

    queue: Queue
    doorbell: Doorbell
    switch: KillSwitch
    passes: WorkerPasses


@cache
def _connections() -> Connections:
    settings = DoorbellSettings.load()
    return Connections(
        settings.queue(),
        Doorbell(boto3.client("sns"), settings.process_tasks_topic_arn),
        KillSwitch(boto3.client("ssm"), settings.kill_switch_parameter),
        WorkerPasses(settings.table, settings.queue_name, settings.worker_passes),
    )


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(_event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Sweep once, and answer with what was found."""
    to = _connections()
    recovered = to.queue.recover()
    count("TasksRecovered", recovered)
    stats = to.queue.stats(approximate=True)
    gauge(stats)
    skipped = _reason_not_to_ring(stats)
    if skipped is None:
        to.doorbell.ring(Ring(reason="sweep"))
    answer = {"recovered": recovered, "rang": skipped is None, "skipped": skipped, "stats": asdict(stats)}
    logger.info("swept", found=answer)
    return answer


def _reason_not_to_ring(stats: Stats) -> str | None:
    to = _connections()
    if stats.pending == 0:
        return "nothing claimable waits"
    if to.queue.paused:
        return "the queue is paused"
    if to.switch.stops():
        return "the kill switch says stop"
    if to.passes.full():
        return "worker passes are under way, and look at the queue again"
    return None
