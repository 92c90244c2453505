"""Puts tasks, invoked from the console, by a schedule or by another service.

Events: ``{}`` for a small demonstration load; ``{"count": 100, "rate_per_second": 10}`` (or
``duration_seconds``) for a synthetic one; ``{"tasks": [{"payload": ..., "task_id": ...}]}`` for real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq.aws.environment import QueueSettings, connect_at_init, dynamodb_client
from freshq.aws.invocation import Connected
from freshq.aws.observability import (
    count,
    fields,
    log_transition,
    logger,
    observed,
    sample_logs,
)
from freshq.aws.producer import parse_load_request, produce

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.aws.pass_options import StoredPassOptions
    from freshq.queue.base import BaseQueue

# Time reserved at the end of the function's timeout for the current batch and the answer.
ANSWER_SECONDS: Final = 10.0


@Connected
def _connections() -> tuple[BaseQueue, StoredPassOptions]:
    settings = QueueSettings.load()
    client = dynamodb_client()
    return settings.queue(client), settings.pass_options(client)


connect_at_init(_connections)


@observed
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Put the tasks of the event, and answer with their outcomes and ids.

    Refused tasks do not fail the invocation, because a retry would refuse them again; the answer says so.

    Raises:
        TasksNotWritten: If tasks were not written. Lambda retries a failed asynchronous invocation under the
            same request id, then sends it to the failed-event queue.
    """
    request = parse_load_request(event)
    queue, options = _connections()
    sample_logs(options.current().log_sample_ratio)
    report = produce(
        queue,
        request,
        context.aws_request_id,
        lambda: context.get_remaining_time_in_millis() / 1000 - ANSWER_SECONDS,
    )
    count("TasksCreated", report.created)
    count("TasksDuplicate", report.duplicates)
    count("TasksRefused", report.refused)
    count("TasksNotWritten", report.unwritten)
    count("TasksTurnedAway", sum(report.turned_away.values()))
    in_full = report.created + report.duplicates + report.updated == report.requested
    log = logger.info if in_full else logger.warning
    log("tasks put", **fields(report=report.summary))
    for task_id in report.created_ids:
        log_transition("task put", task_id)
    report.raise_if_incomplete()
    return report.answer
