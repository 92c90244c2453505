"""Logs, traces and metrics: the only module that imports Powertools.

Metrics are EMF lines in the log, which CloudWatch turns into metrics. POWERTOOLS_SERVICE_NAME and
POWERTOOLS_METRICS_NAMESPACE set service and namespace, POWERTOOLS_LOG_LEVEL the log level, FRESHQ_STACK and
FRESHQ_QUEUE_NAME the dimensions of every metric besides the service, and FRESHQ_LOG_SAMPLE_RATIO the share of
tasks whose transitions are logged at INFO. With POWERTOOLS_TRACE_DISABLED the tracing SDK is not even loaded.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.shared.functions import strtobool
from typing_extensions import override

from freshq.queue.gauges import gauges
from freshq.worker.report import METRIC_OF_OUTCOME, Observer, Outcome
from freshq.worker.runner import CoroutineRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.policy.order import OrderSwitch
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats
    from freshq.worker.runner import Runner

Handler = TypeVar("Handler", bound="Callable[..., Any]")

# At DEBUG they log requests and responses: payloads, and the credentials that sign the requests.
SDK_LOGGERS: Final = ("boto3", "botocore", "s3transfer", "urllib3", "aws_xray_sdk", "aws_lambda_powertools")
LOG_LEVEL_VARIABLE: Final = "POWERTOOLS_LOG_LEVEL"
SAMPLE_VARIABLE: Final = "FRESHQ_LOG_SAMPLE_RATIO"
TRACE_VARIABLE: Final = "POWERTOOLS_TRACE_DISABLED"


def set_log_levels(level: str | None) -> None:
    """Set the level of all loggers, and keep those of the SDK at INFO or above.

    The runtime would set the level of LoggingConfig, which stays at INFO or below: there, WARN would also
    drop the metrics, which are lines without a level.

    Args:
        level: Such as WARN; None for the level that the runtime set.
    """
    if level is not None:
        # Not by Powertools, which takes the level of LoggingConfig instead.
        logging.getLogger(logger.name).setLevel(level)
        logging.getLogger().setLevel(level)
    for name in SDK_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


# Lambda reads the level of a line only if its time is as in RFC 3339.
logger: Final = Logger(use_rfc3339=True)
set_log_levels(os.environ.get(LOG_LEVEL_VARIABLE))
# A tracer that is disabled would load its SDK all the same.
tracer: Final = None if strtobool(os.environ.get(TRACE_VARIABLE, "off")) else Tracer()
metrics: Final = Metrics()
metrics.set_default_dimensions(
    stack=os.environ.get("FRESHQ_STACK", "none"), queue=os.environ.get("FRESHQ_QUEUE_NAME", "default")
)

# A handler that fails before its first metric reports the error; the warning adds nothing.
warnings.filterwarnings("ignore", "No application metrics to publish")

# The threads of a worker share the metrics, which are not thread-safe.
_lock: Final = threading.Lock()


def count(name: str, value: float = 1) -> None:
    """Add to a counter metric."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)


def measure_seconds(name: str, value: float) -> None:
    """Add a sample to a metric in seconds."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Seconds, value=value)


def is_sampled(task_id: str, ratio: float) -> bool:
    """Return whether a task is in the sample: the same in every function, for all lines of the task.

    Args:
        task_id: Id of the task.
        ratio: Share of the tasks that are, from 0 to 1.
    """
    return zlib.crc32(task_id.encode(errors="replace")) < ratio * 2**32


def count_dead_letters(queue: BaseQueue) -> None:
    """Count the tasks that became dead letters here without the verdict of a run.

    `TasksFailed` counts every task that becomes a dead letter, so these as well.
    """
    counts = queue.take_dead_letter_counts()
    count("TasksQuarantined", counts.quarantined)
    count("TasksFailed", counts.quarantined + counts.exhausted)


def log_transition(message: str, task_id: str, **facts: Any) -> None:  # noqa: ANN401 - JSON values
    """Log that a task changed its state: at INFO if the task is in the sample, else at DEBUG."""
    ratio = float(os.environ.get(SAMPLE_VARIABLE, "1"))
    log = logger.info if is_sampled(task_id, ratio) else logger.debug
    log(message, task_id=task_id, **facts)


def traced_handler(handler: Handler) -> Handler:
    """Return a handler whose invocations are X-Ray subsegments; the same one if tracing is off."""
    if tracer is None:
        return handler
    return cast("Handler", tracer.capture_lambda_handler(handler, capture_response=False))


def traced(runner: Runner) -> Runner:
    """Return a runner whose runs are X-Ray subsegments with the id and the attempt of their task.

    The same runner if tracing is off.
    """
    if tracer is None:
        return runner
    in_subsegment = tracer.provider.in_subsegment

    def run(task: Task) -> Any:  # noqa: ANN401 - any JSON value
        with in_subsegment(name="## runner") as subsegment:
            if subsegment is not None:
                subsegment.put_annotation(key="task_id", value=task.task_id)
                subsegment.put_annotation(key="attempt", value=str(task.attempts))
            return runner(task)

    if isinstance(runner, CoroutineRunner):
        vars(run)["codec"] = runner.codec  # the worker asks for it
    return run


# Alarms compare these. CloudWatch cannot fill in a metric that has no value at all.
COUNTED_EVERY_MINUTE: Final = ("TasksClaimed", *METRIC_OF_OUTCOME.values())


def emit_gauges(stats: Stats, pressure: Pressure, *, paused: bool) -> None:
    """Emit the state of the queue; no ages while nothing is pending.

    Args:
        stats: Its counts.
        pressure: Its rates. The share of new tasks that will not be served in time is the `ShedRatio`.
        paused: Whether claims are suspended.
    """
    for name, value in gauges(stats, pressure, paused=paused).items():
        (measure_seconds if name.endswith("PendingSeconds") else count)(name, value)
    for name in COUNTED_EVERY_MINUTE:
        count(name, 0)


def _known(task: Task) -> dict[str, str]:
    """Return the kind and the trace of a task, if it has them."""
    found = {"kind": task.kind, "trace_id": task.trace_id}
    return {name: value for name, value in found.items() if value is not None}


class MetricsObserver(Observer):
    """Turns what a worker does into log lines and metrics. Never logs payloads."""

    @override
    def claimed(self, claim: Claim, age_seconds: float) -> None:
        count("TasksClaimed")
        measure_seconds("ClaimAgeSeconds", age_seconds)
        log_transition(
            "task claimed",
            claim.task.task_id,
            attempt=claim.task.attempts,
            age_seconds=round(age_seconds, 3),
            **_known(claim.task),
        )

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        count(METRIC_OF_OUTCOME[outcome])
        measure_seconds("RunSeconds", run_seconds)
        facts: dict[str, Any] = {
            "outcome": outcome.value,
            "run_seconds": round(run_seconds, 3),
            "error": error,
            **_known(claim.task),
        }
        if outcome is Outcome.SUCCEEDED:
            log_transition("task settled", claim.task.task_id, **facts)
        else:
            logger.warning("task settled", task_id=claim.task.task_id, **facts)

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        count("TasksOverran")
        logger.error("task overran", task_id=claim.task.task_id, run_seconds=round(run_seconds, 3))

    @override
    def switched(self, switch: OrderSwitch) -> None:
        count("OrderSwitches")
        logger.info(
            "order switched",
            newest_first=switch.newest_first,
            oldest_age_seconds=round(switch.oldest_age_seconds, 3),
        )
