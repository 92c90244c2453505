"""`freshq metrics`: serve the gauges of a queue to Prometheus."""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from freshq.cli.command import Port, QueueContext
from freshq.cli.http_server import LOOPBACK, METRICS, HttpResponse, HttpServer, until_signalled, url_of
from freshq.cli.session import refuse_memory
from freshq.errors import FreshqError
from freshq.queue.gauges import GAUGES, gauges_of
from freshq.telemetry.prometheus import prometheus_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)
METRICS_PORT: Final = 9710
Host = Annotated[str, typer.Option(help="Address to serve on; 0.0.0.0 for a Prometheus elsewhere.")]


class QueueCollector(Collector):
    """Reads the gauges of a queue at each scrape."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges that the store counts.

        Raises:
            StoreError: If the store did not answer.
        """
        for name, value in gauges_of(self._queue).items():
            gauge = GaugeMetricFamily(prometheus_name(name), GAUGES[name], labels=["queue"])
            gauge.add_metric([self._queue.name], value)
            yield gauge


def metrics_server(queue: BaseQueue, host: str, port: int) -> HttpServer:
    """Return a server of /metrics that listens on a port, 0 for a free one.

    If the store does not answer, the scrape fails: Prometheus sees it as down.

    Raises:
        ValueError: If it cannot listen there.
    """
    return HttpServer(partial(_answer, QueueCollector(queue)), host, port, "port")


def _answer(collector: QueueCollector, path: str) -> HttpResponse:
    """Answer a scrape."""
    if path != METRICS:
        return HttpResponse(HTTPStatus.NOT_FOUND, "text/plain", f"no such page; use {METRICS}\n".encode())
    registry = CollectorRegistry(auto_describe=False)
    try:
        registry.register(collector)
        text = generate_latest(registry)
    except FreshqError as error:
        logger.warning("cannot read the queue: %s", error)
        return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n".encode())
    return HttpResponse(HTTPStatus.OK, CONTENT_TYPE_LATEST, text)


def metrics(context: QueueContext, port: Port = METRICS_PORT, host: Host = LOOPBACK) -> None:
    """Serve the gauges of a queue to Prometheus.

    Serves /metrics until SIGTERM or Ctrl-C.
    """
    session = context.session
    refuse_memory(session.address)
    # A queue that does not answer at the start is a mistake; one that stops answering later is an outage.
    session.queue.stats(approximate=True)
    with until_signalled(), metrics_server(session.queue, host, port) as server:
        url = f"{url_of(host, server.server_port)}{METRICS}"
        session.output.answer({"url": url}, f"queue {session.queue.name}: {url}", "Ctrl-C ends it.")
        server.serve_forever()
