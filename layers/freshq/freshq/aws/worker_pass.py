"""One pass of ProcessTasks: its connections, and its tail call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from freshq.aws.clients import dynamodb_client
from freshq.aws.observability import count, fields, logger
from freshq.aws.wakeup import SWITCHED_OFF, Ring, WakeUp
from freshq.aws.worker_runs import MetricsObserver, traced
from freshq.aws.worker_settings import WorkerSettings
from freshq.worker.runner import checked_runner, load_runner

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue
    from freshq.worker.report import RunReport
    from freshq.worker.runner import Runner


@dataclass(frozen=True)
class Connections:
    """The connections of a pass.

    Attributes:
        settings: The settings of the function.
        queue: The queue.
        runner: Runs the tasks.
        wakeup: Rings the doorbell, and counts the passes.
    """

    settings: WorkerSettings
    queue: BaseQueue
    runner: Runner
    wakeup: WakeUp

    @classmethod
    def open(cls, advice: str) -> Self:
        """Return the connections that the environment describes.

        Args:
            advice: What to do if the module of the runner is not found.

        Raises:
            ValueError: If a setting is wrong, or the runner cannot be loaded.
        """
        settings = WorkerSettings.load()
        os.environ.update(settings.runner_environment)
        client = dynamodb_client()
        wakeup = WakeUp.connect(settings, settings.trigger_topic_arn, client)
        runner = traced(checked_runner(load_runner(settings.runner, advice)))
        return cls(settings, settings.queue(client), runner, wakeup)


def work(connections: Connections, remaining_seconds: float) -> RunReport:
    """Claim, run and settle tasks, as long as the invocation has time for it.

    Args:
        connections: What the pass works with.
        remaining_seconds: Time until Lambda ends the invocation.
    """
    settings, queue = connections.settings, connections.queue
    worker = settings.worker(queue, connections.runner, MetricsObserver())
    return worker.run(until=queue.now() + settings.claiming_seconds(remaining_seconds))


def tail_call(connections: Connections, ring: Ring, report: RunReport) -> bool:
    """Call the successor if claimable work is left, the pass made progress, and nothing forbids it.

    Args:
        connections: What the pass works with.
        ring: The ring that started it.
        report: What it did.

    Returns:
        Whether the successor was called.
    """
    queue, max_hops = connections.queue, connections.settings.max_hops
    stats = queue.stats(approximate=True)
    if stats.pending == 0 or report.progress == 0 or queue.paused:
        return False
    if ring.hop >= max_hops:
        logger.warning("too many tail calls in a row; the sweep will ring", **fields(max_hops=max_hops))
        count("TailCallsCapped")
        return False
    if connections.wakeup.switch.stops():
        logger.warning("no tail call: " + SWITCHED_OFF)
        return False
    connections.wakeup.ring(Ring(hop=ring.hop + 1, reason="tail_call", chain=ring.chain))
    count("TailCalls")
    return True
