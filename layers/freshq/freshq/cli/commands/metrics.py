"""`freshq metrics`: serve the counts of a queue to Prometheus."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Annotated, Final

import typer

from freshq.cli.command import QueueContext
from freshq.errors import needs

DEFAULT_PORT: Final = 9710
MAX_PORT: Final = 65_535
Port = Annotated[int, typer.Option(min=0, max=MAX_PORT, help="Port to serve on; 0 for a free one.")]
Host = Annotated[str, typer.Option(help="Address to serve on; 0.0.0.0 for a Prometheus elsewhere.")]


def metrics(context: QueueContext, port: Port = DEFAULT_PORT, host: Host = "127.0.0.1") -> None:
    """Serve the gauges of the queue for Prometheus, until SIGTERM or Ctrl-C."""
    with needs("metrics"):
        from freshq.cli.commands.metrics_server import MetricsServer

    session = context.session
    if session.address is not None and session.address.startswith("memory:"):
        raise ValueError("queue: memory:// is in one process, so there is nothing to see; use sqlite:///FILE")
    # A queue that does not answer now is a mistake; one that stops to answer later is an outage.
    session.queue.stats(approximate=True)
    with MetricsServer(session.queue, host, port) as server:
        url = f"http://{host}:{server.server_port}/metrics"
        session.output.answer({"url": url}, f"queue {session.queue.name}: {url}", "Ctrl-C ends it.")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
