"""One worker pass: claims, runs and settles tasks, and calls its successor if work is left."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.data_classes import SNSEvent

from freshq.aws.observability import MetricsObserver, count, logger, metrics, tracer
from freshq.aws.settings import WorkerSettings
from freshq.aws.wakeup import PASSES_UNDER_WAY, SWITCHED_OFF, Ring, WakeUp, parse_ring
from freshq.worker.runner import load_runner

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.queue.queue import Queue
    from freshq.worker.report import RunReport
    from freshq.worker.runner import Runner


@dataclass(frozen=True)
class Connections:
    """What this function uses."""

    settings: WorkerSettings
    queue: Queue
    runner: Runner
    wakeup: WakeUp


@cache
def _connections() -> Connections:
    settings = WorkerSettings.load()
    wakeup = WakeUp.connect(settings, settings.trigger_topic_arn)
    return Connections(settings, settings.queue(), load_runner(settings.runner), wakeup)


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Make a pass, unless enough passes are under way."""
    hop = max((parse_ring(record.sns.message).hop for record in SNSEvent(event).records), default=0)
    logger.append_keys(hop=hop)
    to = _connections()
    if to.wakeup.switch.stops():
        return _skipped(SWITCHED_OFF)
    with to.wakeup.passes.slot(context.aws_request_id) as entered:
        if not entered:
            return _skipped(PASSES_UNDER_WAY)
        report = _work(context.get_remaining_time_in_millis() / 1000)
    count("Passes")
    # After the slot is free: a later put finds it free and rings, an earlier one is counted here.
    called = _tail_call(hop, report)
    answer = {"claimed": report.claimed, "tail_call": called, "unfinished": report.unfinished}
    answer |= {outcome.value: number for outcome, number in report.outcomes.items()}
    logger.info("pass ended", report=answer)
    return answer


def _skipped(reason: str) -> dict[str, Any]:
    count("PassesSkipped")
    logger.info("no pass", skipped=reason)
    return {"claimed": 0, "skipped": reason}


def _work(remaining_seconds: float) -> RunReport:
    to = _connections()
    settings = to.settings
    worker = settings.worker(to.queue, to.runner, MetricsObserver())
    claiming_seconds = min(settings.pass_seconds, remaining_seconds - settings.settle_seconds)
    return worker.run(until=to.queue.now() + claiming_seconds)


def _tail_call(hop: int, report: RunReport) -> bool:
    """Call the successor if claimable work is left, this pass made progress, and nothing forbids it."""
    to = _connections()
    stats = to.queue.stats(approximate=True)
    if stats.pending == 0 or report.progress == 0 or to.queue.paused:
        return False
    if hop >= to.settings.max_hops:
        logger.warning("too many tail calls in a row; the sweep will ring", max_hops=hop)
        count("TailCallsCapped")
        return False
    if to.wakeup.switch.stops():
        logger.warning("no tail call: " + SWITCHED_OFF)
        return False
    to.wakeup.ring(Ring(hop=hop + 1, reason="tail_call"))
    count("TailCalls")
    return True
