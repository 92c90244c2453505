"""Maps events of API Gateway to requests of the HTTP interface, and its responses to answers."""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal

from botocore.config import Config
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from freshq.errors import Overloaded
from freshq.feeds.http_api import JSON_TYPE, ROUTES, ApiRequest, ApiResponse, PutQuery
from freshq.model.validation import problem_of
from freshq.stores.dynamodb.calls import CLIENT_CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping

# API Gateway waits 30 s for an answer. A call that is never answered is sent four times, twice by the SDK and
# twice more by freshq: 14 s, so that the caller gets a 503 that says when to try again.
CALL_CONFIG: Final = CLIENT_CONFIG.merge(
    Config(read_timeout=2, retries={"mode": "standard", "total_max_attempts": 2})
)
# Stage whose paths have no prefix.
DEFAULT_STAGE: Final = "$default"


class _EventPart(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class _Http(_EventPart):
    method: str


class _RequestContext(_EventPart):
    http: _Http
    # What API Gateway knows about the caller. Without it, such as on a route that somebody has added without
    # authorization, nobody has checked the caller.
    authorizer: dict[str, Any] = Field(min_length=1)
    stage: str = DEFAULT_STAGE


class HttpEvent(_EventPart):
    """An event of API Gateway, as far as the interface needs it.

    Attributes:
        version: Version of the format.
        raw_path: The path, decoded; in stages other than the default one, below the name of the stage.
        raw_query_string: The query, still encoded.
        headers: The headers; values of a repeated header are joined by commas.
        body: The body; None without one.
        is_base64_encoded: Whether the body is in Base64, as bodies of other types than text and JSON are.
        request_context: The method, the caller and the stage.
    """

    version: Literal["2.0"]
    raw_path: str
    raw_query_string: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    body: str | None = None
    is_base64_encoded: bool = False
    request_context: _RequestContext


def request_of(event: object) -> ApiRequest:
    """Return the request that an event carries.

    Raises:
        ValueError: If it is no event of an HTTP API in the payload format 2.0.
    """
    try:
        found = HttpEvent.model_validate(event)
    except ValidationError as error:
        problem = problem_of(error)
        name = problem.field or "input"
        msg = f"event: {name}: {problem.reason}; needs an event of API Gateway in the payload format 2.0"
        raise ValueError(msg) from None
    body = found.body or ""
    return ApiRequest(
        found.request_context.http.method,
        _path(found.raw_path, found.request_context.stage),
        found.raw_query_string,
        {name.lower(): value for name, value in found.headers.items()},
        # A lone surrogate becomes bytes that are no JSON, which the interface refuses.
        base64.b64decode(body) if found.is_base64_encoded else body.encode(errors="surrogatepass"),
        "jwt" if "jwt" in found.request_context.authorizer else "iam",
    )


def _path(raw_path: str, stage: str) -> str:
    """Return a path without the name of the stage, which a domain of one's own may leave out."""
    inside = raw_path.removeprefix(f"/{stage}")
    return inside if raw_path not in ROUTES and inside in ROUTES else raw_path


def answer_to(request: ApiRequest, response: ApiResponse) -> dict[str, Any]:
    """Return the answer of the function that carries a response."""
    return {
        "statusCode": int(response.status),
        "headers": {"Content-Type": JSON_TYPE, **response.headers},
        "body": "" if request.method == "HEAD" else response.body.decode(),
        "isBase64Encoded": False,
    }


def logged_error(response: ApiResponse) -> str | None:
    """Return what a log may tell of an error: its message if it is the store's, else its name; None without.

    Messages about wrong arguments repeat what the caller has sent.
    """
    if response.status < HTTPStatus.BAD_REQUEST:
        return None
    is_of_store = response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return str(response.content["message" if is_of_store else "error"])


def receipts_of(request: ApiRequest, response: ApiResponse) -> list[dict[str, Any]]:
    """Return the receipt, or the problem, of each task to put; empty for a request that puts none."""
    route = ROUTES.get(request.path, {}).get(request.method)
    if route is None or route.query is not PutQuery:
        return []
    found: list[dict[str, Any]] = response.content.get("receipts") or [response.content]
    return found


def metric_of(receipt: Mapping[str, Any], status: HTTPStatus) -> str:
    """Return the metric that counts the outcome of a put of one task.

    Args:
        receipt: Its receipt, or its problem.
        status: The status of the whole response.
    """
    if outcome := receipt.get("outcome"):
        return f"Tasks{outcome.title()}"
    if receipt["error"] == "Duplicate":
        return "TasksDuplicate"
    if receipt["error"] == Overloaded.__name__:
        return "TasksTurnedAway"
    return "TasksNotWritten" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "TasksRefused"
