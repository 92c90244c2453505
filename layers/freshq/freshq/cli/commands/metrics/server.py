"""Serves the gauges of a queue in the text format of Prometheus. Each scrape reads the queue."""

from __future__ import annotations

import logging
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from typing_extensions import override

from freshq.errors import FreshqError
from freshq.queue.gauges import GAUGES, gauges, snake_case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
# Scrapes come at once or not at all.
REQUEST_SECONDS: Final = 5.0


def prometheus_name(name: str) -> str:
    """Return the name of a metric as Prometheus writes names: TasksPending is freshq_tasks_pending."""
    return f"freshq_{snake_case(name)}"


class QueueCollector(Collector):
    """Reads the gauges of a queue at each scrape."""

    def __init__(self, queue: BaseQueue) -> None:
        """Read a queue."""
        self._queue = queue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, but those that the store does not count.

        Raises:
            StoreError: If the store did not answer.
        """
        queue = self._queue
        for name, value in gauges(
            queue.stats(approximate=True), queue.pressure(), paused=queue.paused
        ).items():
            gauge = GaugeMetricFamily(prometheus_name(name), GAUGES[name], labels=["queue"])
            gauge.add_metric([queue.name], value)
            yield gauge


class MetricsServer(ThreadingHTTPServer):
    """Answers GET /metrics. If the store does not answer, the scrape fails: Prometheus sees it as down."""

    daemon_threads = True

    def __init__(self, queue: BaseQueue, host: str, port: int) -> None:
        """Listen.

        Args:
            queue: The queue.
            host: Address to listen on.
            port: Port; 0 for a free one.

        Raises:
            ValueError: If it cannot listen there.
        """
        collector = QueueCollector(queue)

        class Handler(_Handler):
            def text(self) -> bytes:
                registry = CollectorRegistry(auto_describe=False)
                registry.register(collector)
                return generate_latest(registry)

        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            msg = f"port: cannot listen on {host}:{port} ({error}); give another port or host"
            raise ValueError(msg) from error


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = REQUEST_SECONDS
    server_version = "freshq"
    sys_version = ""

    def text(self) -> bytes:
        """Return the metrics."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != PATH:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", f"no such page; use {PATH}\n".encode())
            return
        try:
            text = self.text()
        except FreshqError as error:
            logger.warning("the queue was not read: %s", error)
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n".encode())
        else:
            self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, text)

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: Prometheus asks every few seconds."""
