"""Serves the queue over HTTP, behind API Gateway, which has checked the caller."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from freshq.aws.environment import QueueSettings, client_of, connect_at_init
from freshq.aws.http_events import CALL_CONFIG, answer_to, logged_error, metric_of, receipts_of, request_of
from freshq.aws.invocation import Connected
from freshq.aws.observability import count, fields, log_transition, logger, observed, sample_logs
from freshq.errors import StoreError
from freshq.feeds.http_api import HttpApi
from freshq.queue.polling import answer_of

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from freshq.aws.pass_options import StoredPassOptions
    from freshq.queue.base import BaseQueue

# Time reserved at the end of the function's timeout for the answer to a request that waits.
ANSWER_SECONDS: Final = 5.0


@Connected
def _connections() -> tuple[BaseQueue, StoredPassOptions]:
    settings = QueueSettings.load()
    client = client_of("dynamodb", CALL_CONFIG)
    return settings.queue(client), settings.pass_options(client)


connect_at_init(_connections)


@observed
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer a request.

    An unexpected error is raised: API Gateway answers 500, and the alarms count it.

    Raises:
        ValueError: If the event is not from API Gateway.
    """
    request = request_of(event)
    queue, _options = _connections()
    api = HttpApi(queue, is_stopping=lambda: context.get_remaining_time_in_millis() < ANSWER_SECONDS * 1000)
    response = answer_of(api.poll(request))
    receipts = receipts_of(request, response)
    for receipt in receipts:
        count(metric_of(receipt, response.status))
    log = logger.error if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR else logger.info
    log(
        "request answered",
        **fields(
            method=request.method, path=request.path, status=response.status, error=logged_error(response)
        ),
    )
    _log_created([receipt["task_id"] for receipt in receipts if receipt.get("outcome") == "CREATED"])
    return answer_to(request, response)


def _log_created(task_ids: list[str]) -> None:
    if task_ids:
        with suppress(StoreError):  # the tasks are put, whatever share of them is logged
            sample_logs(_connections()[1].current().log_sample_ratio)
    for task_id in task_ids:
        log_transition("task put", task_id)
