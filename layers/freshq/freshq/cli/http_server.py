"""Serve small answers that other programs poll every few seconds."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable
    from http import HTTPStatus

LOOPBACK: Final = "127.0.0.1"
# A client sends such a request in one packet.
REQUEST_SECONDS: Final = 5.0


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
        try:
            super().__init__((host, port), _RequestHandler)
        except (OSError, OverflowError) as error:
            msg = f"{option}: cannot listen on {host}:{port} ({error}); give another port or host"
            raise ValueError(msg) from error


class _RequestHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: HttpServer
    timeout = REQUEST_SECONDS
    server_version = "freshq"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with a body."""
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._send(with_body=False)

    def _send(self, *, with_body: bool) -> None:
        response = self.server.answer(self.path.partition("?")[0])
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(response.body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests arrive every few seconds."""
