"""Serve a dashboard: `freshq dashboard` until a signal ends it, or alongside other work."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Final

import typer
import uvicorn
from typing_extensions import override

from freshq.cli.command import Port, QueueContext, checked_interval
from freshq.cli.dashboard.app import Shown, application
from freshq.cli.http_server import (
    LOOPBACK,
    LOOPBACK_NAMES,
    is_loopback,
    listening,
    quiet_config,
    until_signalled,
    url_of,
)
from freshq.cli.session import refuse_memory
from freshq.errors import without_secrets

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

DEFAULT_PORT: Final = 8710
TOKEN_BYTES: Final = 24
# Streams end immediately; other requests have this long to finish.
END_SECONDS: Final = 2
Host = Annotated[
    str, typer.Option(help="Address to serve on; one that other machines can reach needs --allow-host.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Additional Host header to accept."),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show the queue without allowing changes.")]
EverySeconds = Annotated[float, typer.Option(help="Time between two snapshots of the queue.")]
Schedules = Annotated[
    str | None,
    typer.Option(metavar="SCHEDULES", help="Schedules to show, as for freshq schedule."),
]


class Dashboard(uvicorn.Server):
    """A server that already listens.

    Attributes:
        url: The address to open. The token is in its fragment, which browsers do not send.
    """

    def __init__(self, shown: Shown, host: str = LOOPBACK, port: int = 0, names: Sequence[str] = ()) -> None:
        """Listen.

        Args:
            shown: The content.
            host: Address to listen on.
            port: Port; 0 for a free one.
            names: Additional host names.

        Raises:
            ValueError: If it cannot listen there, or other machines can reach it and no name is given.
        """
        if not is_loopback(host) and not names:
            msg = (
                f"host: {host!r} can be reached from other machines, unencrypted; "
                "to allow that, add --allow-host NAME, the name that browsers use"
            )
            raise ValueError(msg)
        self._socket = listening(host, port)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        own = {*LOOPBACK_NAMES, host} if is_loopback(host) else set()
        app, self._boards = application(shown, {*own, *names}, token)
        name = names[0] if names else host
        self.url = f"{url_of(name, self._socket.getsockname()[1])}/#token={token}"
        super().__init__(quiet_config(app, END_SECONDS))

    def serve_here(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        self.run(sockets=[self._socket])

    @contextmanager
    def beside(self) -> Iterator[str]:
        """Serve in a thread inside the block; yield the address to open."""
        thread = Thread(target=self.serve_here, name="freshq-dashboard", daemon=True)
        thread.start()
        try:
            yield self.url
        finally:
            self.should_exit = True
            thread.join(2 * END_SECONDS)

    def unserved(self) -> None:
        """Stop listening without serving."""
        self._socket.close()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first, because the server waits for them."""
        self._boards.close()
        await super().shutdown(sockets)


def dashboard(
    context: QueueContext,
    port: Port = DEFAULT_PORT,
    host: Host = LOOPBACK,
    allow_host: AllowHost = None,
    read_only: ReadOnly = False,
    every_seconds: EverySeconds = 1.0,
    schedules: Schedules = None,
) -> None:
    """Show the queue live in a browser.

    Serves a page, to this machine only, until SIGTERM or Ctrl-C.
    """
    checked_interval(every_seconds)
    found = []
    if schedules is not None:
        from freshq.cli.commands.schedule import load_schedules

        found = load_schedules(schedules)
    session = context.session
    refuse_memory(session.address)
    # Report an unreachable queue here instead of on an empty page.
    session.queue.stats(approximate=True)
    address = without_secrets(session.address or "")
    shown = Shown(session.queue, found, every_seconds, changes=not read_only, address=address)
    server = Dashboard(shown, host, port, allow_host or ())
    session.output.answer(
        {"url": server.url}, f"queue {session.queue.name}: open {server.url}", "Ctrl-C ends it."
    )
    with until_signalled():
        server.serve_here()
