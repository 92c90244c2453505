"""The HTTP interface of a queue, for producers in any language: maps requests to responses.

`freshq serve` is the server. Ids are in queries and bodies, not in paths: some gateways decode paths, and
cut them at an encoded "?".
"""

from __future__ import annotations

import hmac
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from freshq.errors import (
    FreshqError,
    NotFound,
    Overloaded,
    PutIncomplete,
    RefusedError,
    StoreError,
    WaitTimeout,
)
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.checks import checked_id
from freshq.model.fields import MAX_ID_BYTES
from freshq.model.new_task import NewTask
from freshq.model.task import INTERNAL, MAX_SECONDS, Task
from freshq.model.validation import first_problem, parsed_json
from freshq.policy.shedding import ShedReason
from freshq.queue.core import core_of
from freshq.queue.polling import EndsPoll, Interval, Poll
from freshq.stores.base import Stats

if TYPE_CHECKING:
    from collections.abc import Collection

    from freshq.queue.base import BaseQueue

# Room for several of the largest payloads, or for a batch of a thousand usual ones.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH_TASKS: Final = 1000
# Many gateways and proxies give up after 30 s without an answer.
MAX_WAIT_SECONDS: Final = 20.0
# Retry-After of errors that name no time of their own.
RETRY_SECONDS: Final = 1
JSON_TYPE: Final = "application/json"
OPENAPI_PATH: Final = "/openapi.json"
HEALTH_PATH: Final = "/healthz"
# Paths that need no token, because they reveal nothing about the queue.
PUBLIC_PATHS: Final = (OPENAPI_PATH, HEALTH_PATH)
API_VERSION: Final = "1"
# How callers authorize requests, as OpenAPI describes it. It does not know the signatures of AWS; this is how
# documents of API Gateway describe them.
SECURITY_SCHEMES: Final[Mapping[str, dict[str, str]]] = {
    "token": {"type": "http", "scheme": "bearer"},
    "jwt": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    "iam": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "x-amazon-apigateway-authtype": "awsSigv4",
    },
}
_SECONDS_OF_UNIT: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# The first matching class decides.
_STATUS_OF_ERROR: Final[tuple[tuple[type[Exception], HTTPStatus], ...]] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (Overloaded, HTTPStatus.TOO_MANY_REQUESTS),
    (RefusedError, HTTPStatus.CONFLICT),
    (FreshqError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ValueError, HTTPStatus.UNPROCESSABLE_ENTITY),
)
# The name of the wrong argument, with which a message begins.
_FIELD: Final = re.compile(r"[A-Za-z_][\w.\[\]-]*(?=: )")
# The name and the description of an attribute in a docstring.
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


class ApiRequest(NamedTuple):
    """A request.

    Attributes:
        method: Its method.
        path: Its path, without the query.
        query: Its query, still encoded.
        headers: Its headers, by their names in lower case.
        body: Its body.
        authorization: How a gateway has checked its caller; None if there is no gateway.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    authorization: Literal["iam", "jwt"] | None = None


class ApiResponse(NamedTuple):
    """A response.

    Attributes:
        status: Its status.
        content: Its body as a value for JSON.
        headers: Headers besides the content type.
    """

    status: HTTPStatus
    content: Any
    headers: Mapping[str, str] = {}

    @property
    def body(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.content, allow_nan=False, separators=(",", ":")).encode()


class Refusal(Exception):
    """A refusal of the request itself: the queue was not asked.

    Attributes:
        status: The status of the response.
        headers: Its headers.
    """

    def __init__(self, status: HTTPStatus, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Nothing(_Strict):
    """No arguments."""


class RequestDeadline(BaseModel):
    """Headers that say how long the caller waits, which limits the max age of the task."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    ttl_ms: float = Field(default_factory=lambda: math.inf, ge=0.001, alias="x-request-ttl-ms")
    grpc_timeout: str = Field(default_factory=str, pattern="^[1-9][0-9]{0,7}[HMSmun]$", alias="grpc-timeout")

    @property
    def seconds(self) -> float:
        """The shorter of the two times, in seconds; infinite without a header."""
        text = self.grpc_timeout
        by_grpc = int(text[:-1]) * _SECONDS_OF_UNIT[text[-1]] if text else math.inf
        return min(by_grpc, self.ttl_ms / 1000)


class PutQuery(_Strict):
    """How to put.

    Attributes:
        duplicates: Whether to answer a duplicate with its receipt, or with 409.
    """

    duplicates: Literal["accept", "refuse"] = "accept"


class Batch(_Strict):
    """Tasks to put together."""

    tasks: list[Any] = Field(
        min_length=1,
        max_length=MAX_BATCH_TASKS,
        json_schema_extra={"items": {"$ref": "#/components/schemas/NewTask"}},
    )


class GetQuery(_Strict):
    """Which task, and how long to wait for its end."""

    task_id: str = Field(min_length=1, max_length=MAX_ID_BYTES)
    wait_seconds: float = Field(0, ge=0, le=MAX_WAIT_SECONDS)


class Cancellation(_Strict):
    """Which task to cancel.

    Attributes:
        force: Whether to cancel it even if a worker runs it.
    """

    task_id: str = Field(min_length=1, max_length=MAX_ID_BYTES)
    force: bool = Field(default=False, strict=True)


def _view(of: type[Any], *left_out: str) -> type[BaseModel]:
    """Return the model that shows a dataclass in answers, except some fields."""
    shown: dict[str, Any] = {each.name: (each.type, ...) for each in fields(of) if each.name not in left_out}
    config = ConfigDict(from_attributes=True, defer_build=True)
    model: type[BaseModel] = create_model(of.__name__, __config__=config, __doc__=of.__doc__, **shown)
    known = {"Mapping": Mapping, "ShedReason": ShedReason}
    model.model_rebuild(_types_namespace=vars(sys.modules[of.__module__]) | known)
    return model


TaskView: Final = _view(Task, *INTERNAL)
StatsView: Final = _view(Stats, "ids")


class Problem(BaseModel):
    """Why a request, or a task of a batch, was refused.

    Attributes:
        error: Name of the error.
        message: What is wrong, and what to do.
        field: The wrong field.
        reason: The rule that refused the task.
        retry_after_seconds: When to try again.
        least_value: The value per second that is still served.
        receipts: For a batch, the receipt or the problem of each task, in order.
    """

    error: str
    message: str
    field: str | None = None
    task_id: str | None = None
    reason: str | None = None
    retry_after_seconds: float | None = None
    least_value: float | None = None
    receipts: list[Receipt | Problem] | None = None


class Receipts(BaseModel):
    """A receipt for each task, in order."""

    receipts: list[Receipt]


class _Call(NamedTuple):
    """A checked request."""

    query: Any
    body: Any
    deadline_seconds: float
    authorization: str | None


class Route(NamedTuple):
    """A method of a path.

    Attributes:
        summary: What it does.
        verb: What answers it.
        answers: The model of the response body by status, without the errors of all routes.
        query: The model of the query.
        body: The model of the request body; None if there is no body.
    """

    summary: str
    verb: Callable[[HttpApi, _Call], ApiResponse | Poll[ApiResponse]]
    answers: Mapping[int, Any]
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | None = None


class HttpApi:
    """Answers requests to a queue."""

    def __init__(
        self,
        queue: BaseQueue,
        tokens: Collection[str] = (),
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Answer for a queue.

        Args:
            queue: The queue.
            tokens: The accepted bearer tokens; none if something else checks the callers.
            is_stopping: Returns whether waits must end.
        """
        self.queue = queue
        self.has_tokens = bool(tokens)
        self._tokens = [token.encode() for token in tokens]
        self._is_stopping = is_stopping

    def poll(self, request: ApiRequest) -> Poll[ApiResponse]:
        """Return a poll for the response to a request. Only requests that wait take more than one poll.

        Wrong requests and errors of the store become responses; unexpected errors are raised.
        """
        begun: Poll[ApiResponse] | None = None

        def poll() -> ApiResponse | Interval:
            nonlocal begun
            try:
                answer = begun() if begun else self._answer(request)
            except (Refusal, FreshqError, ValueError) as error:
                return response_to(error)
            if callable(answer):
                begun = answer
                return poll()
            return answer

        return poll

    def _answer(self, request: ApiRequest) -> ApiResponse | Poll[ApiResponse]:
        methods = ROUTES.get(request.path)
        method = "GET" if request.method == "HEAD" else request.method
        self.check_token(request)
        if methods is None:
            raise Refusal(HTTPStatus.NOT_FOUND, f"path: there is no such path; {OPENAPI_PATH} lists all")
        if method not in methods:
            allowed = ", ".join(methods)
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"method: use one of {allowed}", Allow=allowed)
        route = methods[method]
        deadline = _parsed(RequestDeadline, request.headers if route.query is PutQuery else {})
        body = None if route.body is None else _json_object(request)
        if route.body not in (None, NewTask):  # the queue checks a new task
            body = _parsed(route.body, body)
        query = _query(route.query, request.query)
        authorization = "token" if self.has_tokens else request.authorization
        return route.verb(self, _Call(query, body, deadline.seconds, authorization))

    def check_token(self, request: ApiRequest) -> None:
        """Check the caller's token, if this interface has tokens and the path needs one.

        Raises:
            Refusal: If the token is missing or unknown.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compare all tokens, so that the time does not reveal which one is similar.
        known = [hmac.compare_digest(token, given.strip().encode()) for token in self._tokens]
        is_known = scheme.lower() == "bearer" and any(known)
        if self.has_tokens and not is_known and request.path not in PUBLIC_PATHS:
            message = "authorization: needs a known token, as `Authorization: Bearer TOKEN`"
            raise Refusal(HTTPStatus.UNAUTHORIZED, message, WWW_Authenticate="Bearer")

    def put(self, call: _Call) -> ApiResponse:
        """Put a task."""
        new = self.queue.admin.check(self._in_time(call.body, call.deadline_seconds))
        receipt = self.queue.put_many([new])[0]
        return _answer_of_put(call, receipt)

    def put_many(self, call: _Call) -> ApiResponse:
        """Put several tasks."""
        given = enumerate(call.body.tasks)
        tasks = [self._in_time(_object(f"tasks[{n}]", task), call.deadline_seconds) for n, task in given]
        try:
            outcomes: list[Any] = [*self.queue.put_many(tasks)]
            problem = None
        except PutIncomplete as incomplete:
            outcomes, problem = incomplete.receipts, response_to(incomplete)
        answers = [
            response_to(outcome) if isinstance(outcome, Exception) else _answer_of_put(call, outcome)
            for outcome in outcomes
        ]
        receipts = {"receipts": [answer.content for answer in answers]}
        worst = max(
            answers, key=lambda answer: (answer.status, answer.headers.get("Retry-After", "").zfill(9))
        )
        if worst.status < HTTPStatus.BAD_REQUEST:
            return ApiResponse(HTTPStatus.OK, receipts)
        return ApiResponse(worst.status, (problem or worst).content | receipts, worst.headers)

    def _in_time(self, task: dict[str, Any], deadline_seconds: float) -> dict[str, Any]:
        """Return the arguments of a put, with the max age limited to the time that the caller waits."""
        if deadline_seconds == math.inf:
            return task
        core = core_of(self.queue)
        core.begin()  # the queue's max age may be stored
        longest_seconds = core.rules.config.max_age_seconds or MAX_SECONDS
        given = task.get("max_age_seconds")
        if given is None:
            return {**task, "max_age_seconds": min(deadline_seconds, longest_seconds)}
        is_longer = type(given) in (int, float) and given > deadline_seconds
        return {**task, "max_age_seconds": deadline_seconds} if is_longer else task

    def get(self, call: _Call) -> ApiResponse | Poll[ApiResponse]:
        """Return a task immediately, or wait until it ends; after the longest wait, return it as it is."""
        task_id, seconds = checked_id(call.query.task_id), call.query.wait_seconds
        if not seconds:
            return self._task(task_id)
        ends = EndsPoll(core_of(self.queue), [task_id], seconds, 1.0)

        def poll() -> ApiResponse | Interval:
            try:
                answer = ends()
            except WaitTimeout:
                return self._task(task_id)
            waits = isinstance(answer, Interval) and not self._is_stopping()
            return answer if waits and isinstance(answer, Interval) else self._task(task_id)

        return poll

    def _task(self, task_id: str) -> ApiResponse:
        task = self.queue.get(task_id)
        if task is None:
            raise NotFound.of_task(task_id, self.queue.name)
        return ApiResponse(HTTPStatus.OK, _shown(TaskView, task))

    def cancel(self, call: _Call) -> ApiResponse:
        """Cancel a task."""
        task = self.queue.cancel(checked_id(call.body.task_id), force=call.body.force)
        return ApiResponse(HTTPStatus.OK, _shown(TaskView, task))

    def stats(self, _call: _Call) -> ApiResponse:
        """Count the tasks, at a bounded cost."""
        return ApiResponse(HTTPStatus.OK, _shown(StatsView, self.queue.stats(approximate=True)))

    def openapi(self, call: _Call) -> ApiResponse:
        """Describe all routes."""
        return ApiResponse(HTTPStatus.OK, openapi(call.authorization))

    def health(self, _call: _Call) -> ApiResponse:
        """Report that the server answers."""
        return ApiResponse(HTTPStatus.OK, {"status": "ok"})


def response_to(error: Exception) -> ApiResponse:
    """Return the response that reports an error."""
    problem = Problem(error=_name_of(error), message=str(error), task_id=getattr(error, "task_id", None))
    headers: dict[str, str] = {}
    if isinstance(error, Refusal):
        status, headers = error.status, error.headers
    else:
        status = next(status for kind, status in _STATUS_OF_ERROR if isinstance(error, kind))
    if isinstance(error, Overloaded):
        problem.reason, problem.least_value = error.reason, error.least_value or None
        if math.isinf(error.retry_after_seconds):  # the parent's deadline has passed: no retry helps
            status = HTTPStatus.CONFLICT
        else:
            problem.retry_after_seconds = error.retry_after_seconds
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds)))
    elif isinstance(error, StoreError):
        headers["Retry-After"] = str(RETRY_SECONDS)
    elif isinstance(error, ValueError | Refusal) and (found := _FIELD.match(str(error))):
        problem.field = found.group()
    return ApiResponse(status, problem.model_dump(mode="json", exclude_none=True), headers)


def _name_of(error: Exception) -> str:
    if isinstance(error, Refusal):
        return error.status.phrase.title().replace(" ", "").replace("-", "")
    return type(error).__name__ if isinstance(error, FreshqError) else "InvalidValue"


def _shown(view: type[BaseModel], value: Any) -> dict[str, Any]:
    return view.model_validate(value).model_dump(mode="json")


def _answer_of_put(call: _Call, receipt: Receipt) -> ApiResponse:
    if receipt.outcome is PutOutcome.DUPLICATE and call.query.duplicates == "refuse":
        message = f"task {receipt.task_id!r}: the queue has a task with this id; nothing was changed"
        problem = Problem(error="Duplicate", message=message, task_id=receipt.task_id)
        return ApiResponse(HTTPStatus.CONFLICT, problem.model_dump(exclude_none=True))
    is_new = receipt.outcome is PutOutcome.CREATED
    content = {"task_id": receipt.task_id, "outcome": receipt.outcome.value}
    return ApiResponse(HTTPStatus.CREATED if is_new else HTTPStatus.OK, content)


def _json_object(request: ApiRequest) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        Refusal: If the body is too large, or not JSON.
        ValueError: If it is no object.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON_TYPE:  # browsers send this type to other sites only if those allow it
        message = f"content-type: must be {JSON_TYPE}"
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, Accept=JSON_TYPE)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        message = "content-encoding: must be identity; send the body without compression"
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, Accept_Encoding="identity")
    if len(request.body) > MAX_BODY_BYTES:
        message = f"body: at most {MAX_BODY_BYTES} bytes are allowed; put fewer tasks at a time"
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    try:
        body = parsed_json(request.body.decode())
    except ValueError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"body: must be JSON ({error})") from None
    return _object("body", body)


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{name}: must be a JSON object, got {type(value).__name__}"
        raise ValueError(msg)
    return value


def _query(model: type[BaseModel], query: str) -> Any:
    pairs = parse_qsl(query, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise ValueError("query: names an argument twice; give each once")
    return _parsed(model, dict(pairs))


def _parsed(model: type[BaseModel], values: Any) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(first_problem(error, model)) from None


_REFUSED: Final = {409: Problem, 429: Problem}
_TASK: Final = {200: TaskView, 404: Problem}
# Errors that any route may answer with, except the public routes.
_COMMON_ANSWERS: Final = dict.fromkeys((400, 401, 403, 408, 413, 415, 421, 422, 500, 503), Problem)
ROUTES: Final[Mapping[str, Mapping[str, Route]]] = {
    "/v1/tasks": {
        "POST": Route("Put a task", HttpApi.put, {201: Receipt, 200: Receipt, **_REFUSED}, PutQuery, NewTask),
        "GET": Route("Get a task, or wait for its end", HttpApi.get, _TASK, GetQuery),
    },
    "/v1/batch": {
        "POST": Route("Put several tasks", HttpApi.put_many, {200: Receipts, **_REFUSED}, PutQuery, Batch)
    },
    "/v1/cancel": {"POST": Route("Cancel a task", HttpApi.cancel, _TASK | {409: Problem}, body=Cancellation)},
    "/v1/stats": {"GET": Route("Count the tasks", HttpApi.stats, {200: StatsView})},
    OPENAPI_PATH: {"GET": Route("This document", HttpApi.openapi, {200: dict})},
    HEALTH_PATH: {"GET": Route("Whether it runs", HttpApi.health, {200: dict})},
}


@cache
def openapi(authorization: str | None) -> dict[str, Any]:
    """Return the OpenAPI document of all routes, generated from the models that check and answer requests.

    Args:
        authorization: How callers authorize requests: a name in `SECURITY_SCHEMES`; None: not at all.
    """
    by_model, schemas = _schemas()
    # A gateway checks the callers of all paths.
    public = PUBLIC_PATHS if authorization in (None, "token") else ()
    paths = {
        path: {
            method.lower(): _operation(route, by_model, schemas, is_public=path in public)
            for method, route in methods.items()
        }
        for path, methods in ROUTES.items()
    }
    schemes = {name: scheme for name, scheme in SECURITY_SCHEMES.items() if name == authorization}
    return {
        "openapi": "3.1.0",
        "info": {"title": "freshq", "version": API_VERSION},
        "paths": paths,
        "components": {"schemas": schemas} | ({"securitySchemes": schemes} if schemes else {}),
        **({"security": [{authorization: []}]} if schemes else {}),
    }


def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return a reference for each model, and the schemas that the references name."""
    modes: dict[Any, Literal["validation", "serialization"]] = {
        RequestDeadline: "validation",
        Problem: "serialization",
    }
    for route in (route for methods in ROUTES.values() for route in methods.values()):
        modes |= dict.fromkeys((route.query, route.body or route.query), "validation")
        modes |= dict.fromkeys(route.answers.values(), "serialization")
    refs, definitions = TypeAdapter.json_schemas(
        [(model, mode, TypeAdapter(model)) for model, mode in modes.items()],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = definitions.get("$defs", {})
    for schema in schemas.values():
        _describe(schema)
    return {model: schema for (model, _mode), schema in refs.items()}, schemas


def _describe(schema: dict[str, Any]) -> None:
    """Take the descriptions of a model and its fields from the docstring."""
    text, _, attributes = schema.get("description", "").partition("\n\nAttributes:\n")
    schema["description"] = text.partition("\n\n")[0]
    for name, words in _ATTRIBUTE.findall(attributes):
        if name in schema["properties"]:
            schema["properties"][name]["description"] = " ".join(words.split())


def _operation(
    route: Route, by_model: Mapping[Any, dict[str, Any]], schemas: Mapping[str, Any], *, is_public: bool
) -> dict[str, Any]:
    """Return the operation object of a route."""
    places = {"query": route.query} | ({"header": RequestDeadline} if route.query is PutQuery else {})
    parameters = [
        {"name": name, "in": place, "required": name in found.get("required", ()), "schema": schema}
        for place, model in places.items()
        for found in [schemas[by_model[model]["$ref"].rpartition("/")[2]]]
        for name, schema in found.get("properties", {}).items()
    ]
    answers = route.answers if is_public else {**_COMMON_ANSWERS, **route.answers}
    body = None if route.body is None else {"required": True, "content": _content(by_model[route.body])}
    return {
        "summary": route.summary,
        "operationId": route.verb.__name__,
        "parameters": parameters,
        **({} if body is None else {"requestBody": body}),
        "responses": {
            str(status): {"description": HTTPStatus(status).phrase, "content": _content(by_model[model])}
            for status, model in sorted(answers.items())
        },
        **({"security": []} if is_public else {}),
    }


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {JSON_TYPE: {"schema": schema}}
