"""Pages and API of the dashboard, and access to them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import shlex
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from inspect import iscoroutinefunction
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from freshq.addresses import names_object
from freshq.cli.commands.tasks import cause_of, selected_page
from freshq.cli.dashboard.live import LARGEST_SHARE, SAMPLE_SECONDS, Live
from freshq.cli.dashboard.snapshots import (
    PageWatcher,
    contents,
    details,
    has_deadline,
    listed_row,
    queue_row,
    schedule_rows,
)
from freshq.cli.http_server import foreign_caller
from freshq.cli.output import json_text
from freshq.cli.session import note
from freshq.errors import FreshqError, NotFound, RefusedError
from freshq.model.fields import DEFAULT_NAME
from freshq.model.task import TaskStatus
from freshq.model.validation import parsed_json
from freshq.queue.core import core_of
from freshq.queue.queue import Queue, sibling
from freshq.simulate.sweep import Colour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from freshq.feeds.schedules import Schedule
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

TOKEN_HEADER: Final = "x-freshq-token"  # noqa: S105 - the name of the header, not its value
# Other paths need no token and show nothing of the queue.
API: Final = "/api/"
# Nothing is loaded from elsewhere, no script is inline, no site may frame the page.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LISTED_TASKS: Final = 25
LISTED_QUEUES: Final = 100
# The endpoints that read.
READS: Final = ("queue", "live", "schedules", "tasks", "task", "contents")
FIRST_PAYLOAD: Final = '{"hello": "world"}'
MAX_BODY_BYTES: Final = 64 * 1024
# The verbs on all dead letters, or on all of one cause, with whether these return as new.
REDRIVES: Final = {"redrive all": False, "redrive all as new": True}


class Guarded:
    """An application behind its access rules; every answer has `HEADERS`."""

    def __init__(self, app: ASGIApp, names: Collection[str], token: str) -> None:
        """Accept some host names, and API calls with the token."""
        self._app, self._names, self._token = app, names, token

    def _refusal(self, path: str, headers: Headers) -> tuple[HTTPStatus, str] | None:
        """Return the status and the reason of a refusal; None if the request is allowed.

        A page of another site can make a browser call the dashboard, but it does not know the token.
        """
        if refusal := foreign_caller(headers, self._names, "add it with --allow-host"):
            return refusal
        given = headers.get(TOKEN_HEADER, "")
        if path.startswith(API) and not hmac.compare_digest(given.encode(), self._token.encode()):
            return HTTPStatus.UNAUTHORIZED, "the token is missing or wrong; open the address that was printed"
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        else:
            status, problem = refusal
            await JSONResponse({"error": problem}, status)(scope, receive, send_with_headers)


STATIC: Final = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a dashboard.

    Attributes:
        queue: The queue.
        schedules: Known schedules that put tasks into it.
        every_seconds: Time between two snapshots.
        changes: Whether the page may change the queue.
        address: Address of the queue without its password, for commands; empty if there is none.
    """

    queue: BaseQueue
    schedules: Sequence[Schedule] = ()
    every_seconds: float = 1.0
    changes: bool = True
    address: str = ""


class Json(JSONResponse):
    """JSON for programs: infinity is null."""

    def render(self, content: object) -> bytes:
        """Return the text."""
        return json_text(content).encode()


def application(shown: Shown, names: Collection[str], token: str) -> tuple[ASGIApp, Boards]:
    """Return the application of a dashboard, and its boards, which end the streams to its pages.

    Args:
        shown: The content.
        names: Accepted host names.
        token: The token of every API call.
    """
    boards = Boards(shown)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        recording = asyncio.create_task(boards.record())
        yield
        recording.cancel()
        boards.close()

    routes = [
        Route("/", lambda _request: FileResponse(STATIC / "index.html")),
        Route("/palette.css", lambda _request: Response(palette_css(), media_type="text/css")),
        Route("/api/queues", boards.queues),
        *(Route(f"/api/{name}", boards.endpoint(name)) for name in READS),
        Route("/api/do", boards.endpoint("do"), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Any] = {
        RefusedError: partial(_refused, status=HTTPStatus.CONFLICT),
        NotFound: partial(_refused, status=HTTPStatus.NOT_FOUND),
        FreshqError: partial(_refused, status=HTTPStatus.SERVICE_UNAVAILABLE),
        ValueError: partial(_refused, status=HTTPStatus.BAD_REQUEST),
        ClientDisconnect: lambda _request, _error: Response(),  # nobody reads it
        HTTPException: lambda _request, error: Json(
            {"error": error.detail}, error.status_code, error.headers
        ),
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return Guarded(app, names, token), boards


def first_command(address: str, name: str) -> str:
    """Return the command that puts a first task into a queue."""
    words = ["freshq", "put", FIRST_PAYLOAD, *(["--queue", address] if address else [])]
    in_address = names_object(address) or "name" in dict(parse_qsl(urlsplit(address).query))
    return shlex.join(words if in_address or name == DEFAULT_NAME else [*words, "--name", name])


def _refused(_request: Request, error: Exception, status: HTTPStatus) -> Response:
    return Json({"error": str(error)}, status)


def palette_css() -> str:
    """Return the colours of fates as CSS variables."""
    variables = "".join(f"--fate-{colour.name.lower()}:{colour.value};" for colour in Colour)
    return f":root{{{variables}}}\n"


class Boards:
    """The endpoints of each queue in the same tables; queues are opened when first read. Thread-safe."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._apis = {shown.queue.name: _Api(shown, Live(PageWatcher(shown.queue), shown.every_seconds))}

    def close(self) -> None:
        """End all streams, and close the queues that were opened here."""
        with self._lock:
            apis = [*self._apis.values()]
        for api in apis:
            api.live_pages.close()
            if api.shown.queue is not self._shown.queue:
                api.shown.queue.close()

    def names(self) -> list[str]:
        """Return the names of the queues in the tables.

        Raises:
            StoreError: If the store did not answer.
        """
        first = self._shown.queue
        found = core_of(first).store.queue_names() if isinstance(first, Queue) else []
        return sorted({first.name, *found})[:LISTED_QUEUES]

    def of(self, name: str) -> _Api:
        """Return the endpoints of a queue.

        Raises:
            NotFound: If the queue does not exist.
            StoreError: If the store did not answer.
        """
        with self._lock:
            known = self._apis.get(name)
        if known is not None:
            return known
        if name not in self.names():
            msg = f"queue {name!r}: there is none in these tables"
            raise NotFound(msg)
        with self._lock:
            if name not in self._apis:
                queue = sibling(cast("Queue", self._shown.queue), name=name)
                live = Live(PageWatcher(queue), self._shown.every_seconds)
                self._apis[name] = _Api(replace(self._shown, queue=queue, schedules=()), live)
            return self._apis[name]

    def endpoint(self, name: str) -> Callable[[Request], Any]:
        """Return an endpoint that serves the queue which the request names."""

        def api(request: Request) -> _Api:
            return self.of(request.query_params.get("queue") or self._shown.queue.name)

        async def awaited(request: Request) -> Response:
            found = await run_in_threadpool(api, request)
            return cast("Response", await getattr(found, name)(request))

        def called(request: Request) -> Response:
            return cast("Response", getattr(api(request), name)(request))

        return awaited if iscoroutinefunction(getattr(_Api, name)) else called

    async def queues(self, _request: Request) -> Response:
        """List the queues in the tables, each with its main figures."""
        rows = await run_in_threadpool(
            lambda: [queue_row(self.of(name).shown.queue) for name in self.names()]
        )
        return Json({"rows": [row | {"trend": self.of(row["name"]).live_pages.trend()} for row in rows]})

    async def record(self) -> None:
        """Keep the figures of all queues for the charts, until cancelled."""
        every_seconds = max(SAMPLE_SECONDS, self._shown.every_seconds)
        while True:
            began = monotonic()
            try:
                for name in await run_in_threadpool(self.names):
                    await (await run_in_threadpool(self.of, name)).live_pages.sample()
            except FreshqError:  # an open page shows the problem
                pass
            except Exception:
                logger.exception("the dashboard failed to read the figures of its charts")
            took_seconds = monotonic() - began
            await asyncio.sleep(max(every_seconds, took_seconds * (1 / LARGEST_SHARE - 1)))


class _Api:
    """The endpoints of one queue that pages call. Calls to the store run in threads."""

    def __init__(self, shown: Shown, live: Live) -> None:
        self.shown = shown
        self.live_pages = live
        self._queue = shown.queue

    def queue(self, _request: Request) -> Response:
        """Describe the fixed properties of the queue."""
        queue = self._queue
        return Json(
            {
                "name": queue.name,
                "order": queue.admin.config.order.value,
                "max_age_seconds": queue.admin.config.max_age_seconds,
                "has_deadline": has_deadline(queue.admin.config.max_age_seconds),
                "lease_seconds": queue.admin.config.lease_seconds,
                "changes": self.shown.changes,
                "has_schedules": bool(self.shown.schedules),
                "first_command": first_command(self.shown.address, queue.name),
            }
        )

    async def live(self, _request: Request) -> Response:
        """Stream snapshots of the queue."""
        return StreamingResponse(self.live_pages.events(), media_type="text/event-stream")

    def schedules(self, _request: Request) -> Response:
        """List the schedules."""
        return Json({"rows": schedule_rows(self._queue, self.shown.schedules)})

    def tasks(self, request: Request) -> Response:
        """List tasks, all or of one status, or the dead letters of one cause."""
        asked = request.query_params
        cause = (asked["error"], asked.get("kind")) if "error" in asked else None
        tasks, cursor = selected_page(
            self._queue,
            asked.get("status") or None,
            None if cause is None else lambda task: cause_of(task) == cause,
            LISTED_TASKS,
            asked.get("cursor") or None,
        )
        now = self._queue.admin.now()
        return Json({"rows": [listed_row(task, now) for task in tasks], "cursor": cursor})

    def task(self, request: Request) -> Response:
        """Describe one task, without payload and result."""
        task, now = self._found(request.query_params.get("id", "")), self._queue.admin.now()
        redrivable = (
            task.status is TaskStatus.FAILURE and core_of(self._queue).lifecycle.live_until(task) > now
        )
        return Json(details(task, now) | {"redrivable": redrivable})

    def contents(self, request: Request) -> Response:
        """Return payload and result of one task."""
        return Json(contents(self._found(request.query_params.get("id", ""))))

    def _found(self, task_id: str) -> Any:
        task = self._queue.get(task_id)
        if task is None:
            raise NotFound.of_task(task_id, self._queue.name)
        return task

    async def do(self, request: Request) -> Response:
        """Change the queue or a task."""
        if not self.shown.changes:
            return Json(
                {"error": "this dashboard is read-only; start it without --read-only"}, HTTPStatus.FORBIDDEN
            )
        order = await _body(request)
        if isinstance(order, dict) and str(order.get("verb")) in REDRIVES:
            return await run_in_threadpool(self._redrive, order)
        verb = VERBS.get(str(order.get("verb"))) if isinstance(order, dict) else None
        if verb is None:
            msg = f"verb: must be one of {', '.join([*VERBS, *REDRIVES])}"
            raise ValueError(msg)
        task_id = order.get("id", "")
        if verb.of_task != ("id" in order) or not isinstance(task_id, str):
            msg = f"id: {'missing' if verb.of_task else 'only for verbs of one task'}"
            raise ValueError(msg)
        said = await run_in_threadpool(self._done, order["verb"], verb, task_id)
        self.live_pages.refresh()
        return Json({"said": said})

    def _done(self, name: str, verb: _Verb, task_id: str) -> str:
        """Do what the page asks for, and record it in the queue's audit record."""
        outcome = "done"
        try:
            return verb(self._queue, task_id)
        except FreshqError as error:
            outcome = type(error).__name__
            raise
        finally:
            note(
                self._queue, name, {"from": "dashboard"} | ({"task_ids": task_id} if task_id else {}), outcome
            )

    def _redrive(self, order: dict[str, Any]) -> Response:
        """Begin to redrive all dead letters, or all of one cause."""
        if "id" in order:
            raise ValueError("id: only for verbs of one task")
        cause = order.get("cause")
        if cause is not None:
            if not isinstance(cause, dict) or not isinstance(cause.get("error"), str):
                raise ValueError("cause: must have error, and kind unless it is null")
            cause = cause["error"], cause.get("kind")
        self.live_pages.redrive(self._queue, cause, as_new=REDRIVES[order["verb"]])
        given = {"from": "dashboard"} if cause is None else {"from": "dashboard", "cause": cause}
        note(self._queue, order["verb"], given, "begun")
        self.live_pages.refresh()
        return Json({"said": "The redrive has begun."})


async def _body(request: Request) -> Any:
    """Return the JSON value of a request's body, read up to its limit.

    Raises:
        HTTPException: If it is too long.
        ValueError: If it is not JSON.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: at most {MAX_BODY_BYTES} bytes")
    try:
        return parsed_json(body.decode())
    except ValueError as error:
        msg = f"body: must be JSON ({error})"
        raise ValueError(msg) from error


@dataclass(frozen=True, slots=True)
class _Verb:
    """An action of the page.

    Attributes:
        do: The action, given the queue and the id of the task.
        said: Message for the page, formatted with the id and the result of `do`.
        of_task: Whether it applies to one task.
    """

    do: Callable[[BaseQueue, str], object]
    said: str
    of_task: bool = True

    def __call__(self, queue: BaseQueue, task_id: str) -> str:
        """Act, and return the message for the page."""
        return self.said.format(id=task_id, result=self.do(queue, task_id))


VERBS: Final = {
    "pause": _Verb(
        lambda queue, _: queue.pause(), "Claims are suspended. Tasks can still be put.", of_task=False
    ),
    "resume": _Verb(lambda queue, _: queue.resume(), "Claims are allowed again.", of_task=False),
    "redrive": _Verb(lambda queue, task_id: queue.redrive([task_id]), "Task {id} returned to its line."),
    "redrive as new": _Verb(
        lambda queue, task_id: queue.redrive([task_id], as_new=True),
        "Task {id} is in its line as if it were put now.",
    ),
    "purge": _Verb(
        lambda queue, task_id: queue.purge(status="FAILURE", task_ids=[task_id], confirm=queue.name),
        "Dead letter {id} was deleted.",
    ),
    "cancel": _Verb(lambda queue, task_id: queue.cancel(task_id), "Task {id} was cancelled."),
    "cancel by force": _Verb(
        lambda queue, task_id: queue.cancel(task_id, force=True),
        "Task {id} was cancelled. Its run is asked to stop, and its result will be dropped.",
    ),
}
