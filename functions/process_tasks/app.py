"""One worker pass: claims, runs and settles tasks, and calls its successor if work is left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from freshq.aws.clients import dynamodb_client
from freshq.aws.environment import connect_at_init
from freshq.aws.observability import count, count_dead_letters, fields, logger, metrics, traced_handler
from freshq.aws.wakeup import PASSES_UNDER_WAY, SWITCHED_OFF, Ring, WakeUp, parse_rings
from freshq.aws.worker_runs import MetricsObserver, traced
from freshq.aws.worker_settings import WorkerSettings
from freshq.worker.runner import checked_runner, load_runner

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.queue.base import BaseQueue
    from freshq.worker.report import RunReport
    from freshq.worker.runner import Runner

# If the module of the runner is not found.
ADVICE: Final = "add it to functions/process_tasks or to a layer"


@dataclass(frozen=True)
class Connections:
    """What this function uses."""

    settings: WorkerSettings
    queue: BaseQueue
    runner: Runner
    wakeup: WakeUp


@cache
def _connections() -> Connections:
    settings = WorkerSettings.load()
    os.environ.update(settings.runner_environment)
    client = dynamodb_client()
    wakeup = WakeUp.connect(settings, settings.trigger_topic_arn, client)
    runner = traced(checked_runner(load_runner(settings.runner, ADVICE)))
    return Connections(settings, settings.queue(client), runner, wakeup)


connect_at_init(_connections)


@logger.inject_lambda_context(clear_state=True)
@traced_handler
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Make a pass, unless enough passes are under way."""
    ring = max(parse_rings(event), key=lambda ring: ring.hop, default=Ring())
    logger.append_keys(hop=ring.hop, chain=ring.chain)
    to = _connections()
    if to.wakeup.switch.stops():
        return _skipped(SWITCHED_OFF)
    with to.wakeup.passes.slot(context.aws_request_id) as entered:
        if not entered:
            return _skipped(PASSES_UNDER_WAY)
        report = _work(context.get_remaining_time_in_millis() / 1000)
    count("Passes")
    count_dead_letters(to.queue)
    answer: dict[str, Any] = {"claimed": report.claimed, "unfinished": report.unfinished}
    answer |= {outcome.value: number for outcome, number in report.outcomes.items()}
    try:
        # After the slot is free: a later put finds it free and rings, an earlier one is counted here.
        answer["tail_call"] = _tail_call(ring, report)
    except Exception:  # Lambda repeats the invocation: the pass that it makes is the successor
        count("TailCallsFailed")
        logger.exception("pass ended, and the tail call failed", **fields(report=answer))
        raise
    logger.info("pass ended", **fields(report=answer))
    return answer


def _skipped(reason: str) -> dict[str, Any]:
    count("PassesSkipped")
    logger.info("no pass", **fields(skipped=reason))
    return {"claimed": 0, "skipped": reason}


def _work(remaining_seconds: float) -> RunReport:
    to = _connections()
    settings = to.settings
    worker = settings.worker(to.queue, to.runner, MetricsObserver())
    claiming_seconds = settings.claiming_seconds(remaining_seconds)
    return worker.run(until=to.queue.now() + claiming_seconds)


def _tail_call(ring: Ring, report: RunReport) -> bool:
    """Call the successor if claimable work is left, this pass made progress, and nothing forbids it."""
    to = _connections()
    stats = to.queue.stats(approximate=True)
    if stats.pending == 0 or report.progress == 0 or to.queue.paused:
        return False
    if ring.hop >= to.settings.max_hops:
        logger.warning("too many tail calls in a row; the sweep will ring", **fields(max_hops=ring.hop))
        count("TailCallsCapped")
        return False
    if to.wakeup.switch.stops():
        logger.warning("no tail call: " + SWITCHED_OFF)
        return False
    to.wakeup.ring(Ring(hop=ring.hop + 1, reason="tail_call", chain=ring.chain))
    count("TailCalls")
    return True
