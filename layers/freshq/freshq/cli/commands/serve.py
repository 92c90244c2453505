"""`freshq serve`: an HTTP interface to a queue, for producers in any language."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
import uvicorn

from freshq.cli.command import Port, QueueContext
from freshq.cli.http_server import (
    LOOPBACK,
    LOOPBACK_NAMES,
    METRICS,
    HttpResponse,
    foreign_caller,
    is_loopback,
    listening,
    metrics_page,
    quiet_config,
    until_signalled,
    url_of,
)
from freshq.cli.session import refuse_memory
from freshq.errors import MissingExtra
from freshq.feeds.http_api import (
    HEALTH_PATH,
    JSON_TYPE,
    MAX_BODY_BYTES,
    RETRY_SECONDS,
    ApiRequest,
    ApiResponse,
    HttpApi,
    Refusal,
    response_to,
)
from freshq.model.telemetry import everywhere
from freshq.queue.asyncio import answer_in_threads
from freshq.stores.threads import MAX_THREADS, Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

    from freshq.queue.base import BaseQueue

DEFAULT_PORT: Final = 8720
TOKENS_VARIABLE: Final = "FRESHQ_SERVE_TOKENS"
MIN_TOKEN_CHARS: Final = 16
# Time limit for the body of a request. Below END_SECONDS, so that a stalled client cannot spoil a clean stop.
BODY_SECONDS: Final = 20.0
# Time to answer open requests after a signal; Kubernetes kills the process after 30 s.
END_SECONDS: Final = 25
# Load balancers reuse an idle connection for up to 60 s by default; the server must not close it first.
IDLE_SECONDS: Final = 75
# Each connection holds at most one body in memory.
MAX_CONNECTIONS: Final = 500
Host = Annotated[str, typer.Option(help="Address to serve on; others than this machine's need tokens.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=f"Accepted bearer tokens, one a line. By default, those in {TOKENS_VARIABLE}."
    ),
]


class ApiServer(uvicorn.Server):
    """A server that already listens.

    Attributes:
        url: Its address.
    """

    def __init__(self, queue: BaseQueue, host: str, port: int, tokens: Sequence[str] = ()) -> None:
        """Listen.

        Args:
            queue: The queue.
            host: Address to listen on.
            port: Port; 0 for a free one.
            tokens: The accepted tokens; none are needed on this machine's own addresses.

        Raises:
            ValueError: If it cannot listen there, or others could put tasks without a token.
        """
        if not tokens and not is_loopback(host):
            msg = (
                f"host: {host!r} can be reached from other machines; give --token-file FILE or set "
                f"{TOKENS_VARIABLE}, and let a proxy add TLS"
            )
            raise ValueError(msg)
        self._api = HttpApi(queue, tokens, lambda: self.should_exit)
        self._names = LOOPBACK_NAMES | {host}
        self._threads = Threads(MAX_THREADS, "freshq-serve")
        self._socket = listening(host, port)
        self.url = url_of(host, self._socket.getsockname()[1])
        super().__init__(
            quiet_config(
                self._respond,
                END_SECONDS,
                ws="none",
                timeout_keep_alive=IDLE_SECONDS,
            )
        )

    def serve_here(self) -> None:
        """Serve until SIGINT or SIGTERM, then answer the open requests."""
        self.run(sockets=[self._socket])

    async def _respond(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._threads.finish()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            query = scope["query_string"].decode("latin-1")
            request = ApiRequest(scope["method"], scope["path"], query, _headers(scope["headers"]))
            try:
                response = await self._answer(request, receive)
            except Exception:
                message = "an error in freshq; the server's log has it"
                refusal = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, message, Connection="close")
                await _send(send, response_to(refusal))
                raise  # uvicorn logs the error and closes the connection
            if response is not None:
                await _send(send, response)

    async def _answer(
        self, request: ApiRequest, receive: ASGIReceiveCallable
    ) -> ApiResponse | HttpResponse | None:
        """Read the body of a request and return the response; None if the caller has disconnected."""
        try:
            self._check(request)  # before reading the body into memory
            body = await _body(receive)
        except Refusal as refusal:
            return response_to(refusal)
        if body is None:
            return None
        if request.path == METRICS:
            return metrics_page()
        return await answer_in_threads(self._threads, self._api.poll(request._replace(body=body)))

    def _check(self, request: ApiRequest) -> None:
        # A probe that fails would have a busy server killed.
        if len(self.server_state.connections) > MAX_CONNECTIONS and request.path != HEALTH_PATH:
            message = f"more than {MAX_CONNECTIONS} connections are open; use fewer, and try again"
            retry = str(RETRY_SECONDS)
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, message, Retry_After=retry, Connection="close")
        if not self._api.has_tokens:  # pages of other sites cannot know a token
            advice = "use localhost, or serve with tokens"
            if refused := foreign_caller(request.headers, self._names, advice):
                raise Refusal(*refused)
        self._api.check_token(request)


def _headers(lines: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Return the headers by name; join the values of a repeated header with commas, as HTTP does."""
    found: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


async def _body(receive: ASGIReceiveCallable) -> bytes | None:
    """Read the body of a request; None if the caller has disconnected.

    Of a body that is too large, only the first part is kept: a little more than is allowed.

    Raises:
        Refusal: If the body did not arrive in time.
    """
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                if len(body) <= MAX_BODY_BYTES:  # but read on: many clients read no answer before
                    body += message["body"]
                more = message["more_body"]
    except TimeoutError:
        why = f"body: did not arrive in {BODY_SECONDS:.0f} s"
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, why) from None
    return bytes(body)


async def _send(send: ASGISendCallable, response: ApiResponse | HttpResponse) -> None:
    content = response.body
    sent = {"Content-Length": str(len(content))}
    if isinstance(response, HttpResponse):
        sent["Content-Type"] = response.content_type
    else:
        sent |= {"Content-Type": JSON_TYPE, **response.headers}
    lines = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": lines})
    await send({"type": "http.response.body", "body": content})


def load_tokens(file: Path | None) -> list[str]:
    """Return the accepted tokens, from a file if given, otherwise from the environment.

    Raises:
        ValueError: If the file is empty or cannot be read, or a token is too short. The message never shows a
            token.
    """
    source = TOKENS_VARIABLE if file is None else f"token_file: {file}"
    try:  # editors on Windows begin a file with a byte order mark, and its shell writes UTF-16
        text = os.environ.get(TOKENS_VARIABLE, "") if file is None else file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{source}: cannot be read as UTF-8 ({error}); name a text file with one token a line"
        raise ValueError(msg) from error
    tokens = text.split()
    if not tokens and file is not None:
        msg = f"{source}: has no token; write one a line, such as from `openssl rand -hex 24`"
        raise ValueError(msg)
    for number, token in enumerate(tokens, 1):
        if len(token) < MIN_TOKEN_CHARS or not token.isascii():
            msg = (
                f"{source}: token {number} must be {MIN_TOKEN_CHARS} or more ASCII characters; "
                "`openssl rand -hex 24` makes one"
            )
            raise ValueError(msg)
    return tokens


def serve(
    context: QueueContext, port: Port = DEFAULT_PORT, host: Host = LOOPBACK, token_file: TokenFile = None
) -> None:
    """Serve the queue over HTTP, to producers in any language.

    Serves until SIGTERM or Ctrl-C, and then answers the open requests.
    """
    session = context.session
    refuse_memory(session.address)
    tokens = load_tokens(token_file)
    with suppress(MissingExtra):  # then /metrics names the missing package
        from freshq.telemetry.prometheus import Prometheus

        context.with_resource(everywhere(Prometheus()))
    # Report an unreachable queue here instead of to every producer.
    session.queue.stats(approximate=True)
    server = ApiServer(session.queue, host, port, tokens)
    with until_signalled():
        session.output.answer(
            {"url": server.url}, f"queue {session.queue.name}: {server.url}", "Ctrl-C ends it."
        )
        server.serve_here()
