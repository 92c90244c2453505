"""Logs and metrics of the functions, kept separate from the runner's, which may also use Powertools."""

from __future__ import annotations

import logging
import os
import threading
import zlib
from contextlib import contextmanager
from contextvars import Context
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.filters import SuppressFilter
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider
from aws_lambda_powertools.shared.functions import strtobool
from typing_extensions import override

from freshq.aws.invocation import QUEUE_VARIABLE, Invocation, invocation, under_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from freshq.queue.base import BaseQueue

Handler = TypeVar("Handler", bound="Callable[..., Any]")
# At DEBUG they log requests and responses, with payloads and signing credentials.
SDK_LOGGERS: Final = ("boto3", "botocore", "s3transfer", "urllib3", "aws_xray_sdk", "aws_lambda_powertools")
# Kind of the task that a new version runs before it gets traffic, and the prefix of the queues of such tasks.
CANARY: Final = "canary"
CANARY_QUEUE: Final = "canary-"
LOG_LEVEL_VARIABLE: Final = "POWERTOOLS_LOG_LEVEL"
IS_TRACED: Final = not strtobool(os.environ.get("POWERTOOLS_TRACE_DISABLED", "off"))
# Attribute of a log record that carries the fields of its line.
FIELDS: Final = "_freshq_fields"
# The logger of the library, and below it the functions' own. Powertools shares loggers by name; the runner's
# `Logger()` must not get this one.
LIBRARY: Final = "freshq"
FUNCTIONS: Final = "freshq.functions"
PROVISIONED: Final = "provisioned-concurrency"
# Set once this process has begun its first invocation.
_warm: Final = threading.Event()
if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == PROVISIONED:
    _warm.set()
# Until the stored options are read, every task is sampled.
_sampling: Final = {"ratio": 1.0}
_lock: Final = threading.Lock()


class _Formatter(LambdaPowertoolsFormatter):
    """Formats lines without the keys that the runner appends for its threads, which Powertools shares."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return Context().run(super().format, record)


class _Logger(Logger):
    @override
    def _get_logger(self) -> logging.Logger:
        return logging.getLogger(FUNCTIONS)


class _Fields(logging.Filter):
    """Gives a record the fields of its line, overriding existing ones: saved queries search for them."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        # A logger of the runner may have the name of the library.
        if record.name == LIBRARY:
            return False
        vars(record).update(invocation().log_keys)
        vars(record).update(vars(record).pop(FIELDS, {}))
        return True


class _NotOurs(logging.Filter):
    """Keeps the lines of the library, which have a handler, from the handlers of the runtime."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.name.startswith(f"{LIBRARY}.")


def _as_text(value: object) -> str:
    """Return the text of a value that JSON lacks; the `str` of a runner's exception may fail, or exit."""
    if not isinstance(value, BaseException):
        return str(value)
    from freshq.model.answers import error_text  # functions that only ring need none of the model

    return error_text(value)


def _own_logger() -> Logger:
    """Return the logger of the functions; lines of the library go to its handler as well."""
    # Lambda reads the level of a line only if its time is as in RFC 3339.
    formatter = _Formatter(use_rfc3339=True, json_default=_as_text)
    made = _Logger(logger_formatter=cast("Any", formatter))
    handler, own, library = made.registered_handler, logging.getLogger(FUNCTIONS), logging.getLogger(LIBRARY)
    handler.addFilter(_Fields())
    for of_runtime in logging.getLogger().handlers:
        for each in of_runtime.filters[:]:
            # It would drop the lines of the runner whose logger has "freshq" anywhere in its name.
            if isinstance(each, SuppressFilter) and each.logger == made.service:
                of_runtime.removeFilter(each)
                of_runtime.addFilter(_NotOurs())
    library.addHandler(handler)
    library.setLevel(own.level)
    own.setLevel(logging.NOTSET)  # it has the library's
    own.propagate = False
    return made


logger: Final = _own_logger()


def _provider(queue: str) -> AmazonCloudWatchEMFProvider:
    """Return the metrics of a queue, kept separate from those of other Powertools users."""
    dimensions = {"stack": os.environ.get("FRESHQ_STACK", "none"), "queue": queue}
    return AmazonCloudWatchEMFProvider(default_dimensions=dimensions)


# All invocations share it, except canaries; `_lock` guards it, as it is not thread-safe.
metrics: Final = _provider(os.environ.get(QUEUE_VARIABLE, "default"))


def set_log_levels(level: str | None) -> None:
    """Set the level of all loggers, and keep the SDK's loggers at INFO or above.

    The runtime sets the level of LoggingConfig, which must stay at INFO or below: WARN there would also drop
    the metrics, which are lines without a level.

    Args:
        level: Such as WARN; None keeps the level of the runtime.
    """
    if level is not None:
        logging.getLogger(LIBRARY).setLevel(level)
        logging.getLogger().setLevel(level)
    for name in SDK_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def fields(**values: Any) -> dict[str, Any]:
    """Return the fields of a line for `logger`: ``logger.info("swept", **fields(found=answer))``.

    They share one name until the record exists, because `logging` refuses fields that a record already has,
    and a library of the runner may have set a record factory that adds any field.
    """
    return {FIELDS: values}


set_log_levels(os.environ.get(LOG_LEVEL_VARIABLE))


def count(name: str, value: float = 1) -> None:
    """Add to a counter metric."""
    _add(name, MetricUnit.Count, value)


def measure_seconds(name: str, value: float) -> None:
    """Add a sample to a metric in seconds."""
    _add(name, MetricUnit.Seconds, value)


def _add(name: str, unit: MetricUnit, value: float) -> None:
    with _lock:
        _metrics_of(invocation()).add_metric(name=name, unit=unit, value=value)


def _metrics_of(of: Invocation) -> AmazonCloudWatchEMFProvider:
    if of.canary_queue is None:
        return metrics
    return cast("AmazonCloudWatchEMFProvider", of.kept.setdefault(_provider, _provider(CANARY)))


def sample_logs(ratio: float) -> None:
    """Set the share of the tasks whose transitions are logged at INFO, from 0 to 1."""
    _sampling["ratio"] = ratio


def is_sampled(task_id: str, ratio: float) -> bool:
    """Return whether a task is sampled. All functions agree, for all lines of the task.

    Args:
        task_id: Id of the task.
        ratio: Share of sampled tasks, from 0 to 1.
    """
    return zlib.crc32(task_id.encode(errors="replace")) < ratio * 2**32


def count_dead_letters(queue: BaseQueue) -> None:
    """Count the tasks that became dead letters in this function without a run.

    `TasksFailed` counts every task that becomes a dead letter, including these.
    """
    counts = queue.admin.take_dead_letter_counts()
    count("TasksUnreadable", counts.unreadable)
    count("TasksFailed", counts.unreadable + counts.exhausted)


def log_transition(message: str, task_id: str, **facts: Any) -> None:
    """Log a change of a task's state: at INFO if the task is sampled, else at DEBUG."""
    log = logger.info if is_sampled(task_id, _sampling["ratio"]) else logger.debug
    log(message, **fields(task_id=task_id, **facts))


def observed(handler: Handler) -> Handler:
    """Return a handler with logs, metrics and traces, which also answers the hook of a deployment.

    The hook's event is ``{"canary": QUEUE, "event": EVENT}``. Such an invocation works on a queue of its own,
    and its metrics have the queue `canary`, so that no alarm sees them.
    """
    in_trace = handler
    if IS_TRACED:
        from freshq.aws import traces

        in_trace = traces.traced_handler(handler)

    @wraps(handler)
    def handle(event: Any, context: Any) -> Any:
        begun = Invocation(log_keys=_keys_of(context))
        if isinstance(event, dict) and event.keys() == {CANARY, "event"}:
            begun.canary_queue, event = _canary_queue(event[CANARY]), event["event"]
        with under_way(begun), _flushed(begun):
            return in_trace(event, context)

    return cast("Handler", handle)


def _keys_of(context: Any) -> dict[str, Any]:
    is_cold = not _warm.is_set()
    _warm.set()
    return {
        "cold_start": is_cold,
        "function_name": context.function_name,
        "function_memory_size": context.memory_limit_in_mb,
        "function_arn": context.invoked_function_arn,
        "function_request_id": context.aws_request_id,
    }


@contextmanager
def _flushed(of: Invocation) -> Iterator[None]:
    """Write the metrics at the end of a `with` block, also those that earlier invocations left behind."""
    try:
        yield
    finally:
        with _lock:
            found = _metrics_of(of)
            if found.metric_set:  # another invocation may have written them
                found.flush_metrics()


def append_log_keys(**keys: Any) -> None:
    """Add fields to all further log lines of this invocation."""
    invocation().log_keys.update(keys)


def _canary_queue(name: Any) -> str:
    if not str(name).startswith(CANARY_QUEUE):
        msg = f"canary: must be a queue named {CANARY_QUEUE}..., got {name!r:.60}"
        raise ValueError(msg)
    return str(name)


def is_canary() -> bool:
    """Return whether this invocation is by the hook of a deployment."""
    return invocation().canary_queue is not None
