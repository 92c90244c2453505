"""Who may call the dashboard: pages of its own address, with the token that was printed at its start."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_HEADER: Final = "x-freshq-token"  # noqa: S105 - the name of the header, not what it carries
# Paths outside it need no token, and show nothing of the queue.
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


@dataclass(frozen=True, slots=True)
class Access:
    """Decides about requests.

    Attributes:
        names: Host names under which the dashboard is called.
        token: What every call of the API must carry.
    """

    names: Collection[str]
    token: str

    def refusal(self, path: str, headers: Headers) -> tuple[HTTPStatus, str] | None:
        """Return why a request is refused, and the status of the answer; None if it is not.

        A page of another site may make a browser call the dashboard. It cannot forge Host or Origin, and does
        not know the token. Host reveals a name that was bound to this machine's address.

        Args:
            path: What is called.
            headers: The headers of the request.
        """
        host = headers.get("host", "")
        if _name(f"//{host}") not in self.names:
            return HTTPStatus.MISDIRECTED_REQUEST, "the dashboard is not called by this host name"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return HTTPStatus.FORBIDDEN, "the request comes from a page of another origin"
        given = headers.get(TOKEN_HEADER, "")
        if path.startswith(API) and not hmac.compare_digest(given.encode(), self.token.encode()):
            return HTTPStatus.UNAUTHORIZED, "the token is missing or wrong; open the address that was printed"
        return None


def _name(address: str) -> str | None:
    """Return the host name of an address; None if it is no address."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class Guarded:
    """An application behind its access rules; each answer carries `HEADERS`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._access.refusal(scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        else:
            status, problem = refusal
            await JSONResponse({"error": problem}, status)(scope, receive, send_with_headers)
