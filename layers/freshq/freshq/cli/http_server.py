"""Parts of the HTTP servers: listening, the checks of callers, and a small server for probes and scrapes."""

from __future__ import annotations

import signal
import socket
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from typing_extensions import override

from freshq.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import uvicorn

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
# Probes and scrapes fit into one packet.
REQUEST_SECONDS: Final = 5.0
METRICS: Final = "/metrics"


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable from this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int, option: str = "port") -> socket.socket:
    """Return a socket that already listens.

    Args:
        host: Address to listen on.
        port: Port; 0 for a free one.
        option: The option that gave the port, for the error.

    Raises:
        ValueError: If it cannot listen there.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen()  # now, so that no other process can take the port
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # the last two: a wrong host
        found.close()
        msg = f"{option}: cannot listen on {host}:{port} ({error}); give another port or host"
        raise ValueError(msg) from error
    return found


def url_of(host: str, port: int) -> str:
    """Return the address of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def until_signalled() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; both are the usual end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield


def quiet_config(app: Any, end_seconds: int, **more: Any) -> uvicorn.Config:
    """Return the settings of a server that logs only errors.

    Args:
        app: The ASGI application.
        end_seconds: Time to finish the open requests after a signal.
        more: Further settings.
    """
    import uvicorn  # comes with an extra, which the server of metrics does not need

    off = ("access_log", "proxy_headers", "server_header", "date_header")
    quiet: dict[str, Any] = {**dict.fromkeys(off, False), "log_level": "error", "log_config": None, **more}
    return uvicorn.Config(
        app, interface="asgi3", lifespan="on", timeout_graceful_shutdown=end_seconds, **quiet
    )


def foreign_caller(
    headers: Mapping[str, str], names: Collection[str], advice: str
) -> tuple[HTTPStatus, str] | None:
    """Return the status and the reason of a refusal, if a page of another site may have sent a request.

    A page cannot forge Host or Origin, nor leave out Host, as probes of HTTP/1.0 do. A foreign Host means DNS
    rebinding.

    Args:
        headers: Headers of the request, by their names in lower case.
        names: Accepted host names.
        advice: How to make an unknown host name known, for the message.
    """
    host = headers.get("host")
    if host is not None and _parts(f"//{host}").hostname not in names:
        return HTTPStatus.MISDIRECTED_REQUEST, f"unknown host name; {advice}"
    origin = headers.get("origin")
    if origin is not None and _parts(origin).netloc != host:
        return HTTPStatus.FORBIDDEN, "the request comes from a page of another origin"
    return None


def _parts(address: str) -> SplitResult:
    """Return the parts of an address; an invalid address has none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


class HttpResponse(NamedTuple):
    """The answer to a request.

    Attributes:
        status: The HTTP status.
        content_type: Type of the body.
        body: The body; HEAD requests get none.
    """

    status: HTTPStatus
    content_type: str
    body: bytes


def metrics_page(folder: str | None = None) -> HttpResponse:
    """Answer a scrape with the counters of this process, or of all processes that share a folder."""
    try:
        from freshq.telemetry.prometheus import exposition
    except MissingExtra as error:
        return HttpResponse(HTTPStatus.NOT_FOUND, "text/plain", f"{error}\n".encode())
    return HttpResponse(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", exposition(folder))


class HttpServer(ThreadingHTTPServer):
    """Answers GET and HEAD, each request in a thread. Logs no request."""

    def __init__(self, answer: Callable[[str], HttpResponse], host: str, port: int, option: str) -> None:
        """Listen.

        Args:
            answer: Returns the response for a path without its query.
            host: Address to listen on.
            port: Port; 0 for a free one.
            option: The option that gave the port, for the error.

        Raises:
            ValueError: If it cannot listen there.
        """
        self.answer = answer
        bound = listening(host, port, option)
        super().__init__((host, port), _RequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_port = bound.getsockname()[1]


class _RequestHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: HttpServer
    timeout = REQUEST_SECONDS
    server_version = "freshq"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request; HEAD gets no body."""
        response = self.server.answer(self.path.partition("?")[0])
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET  # noqa: N815 - named by the base class

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because requests arrive every few seconds."""
