"""The health endpoint: `/live` and `/ready`, for orchestrators."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.http_server import HttpResponse, HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from freshq.cli.process.report import ProcessStatus

# A call to the store may take nine tenths of a lease, and a round of the loop makes a few of them.
LEASES_PER_LOOP: Final = 2
MIN_LOOP_SECONDS: Final = 30.0
# A store that has not answered for this time is unreachable, although the call has not failed yet.
ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """How long a round of a worker's loop may take.

    Attributes:
        live_seconds: Beyond this the loop is stuck.
        ready_seconds: Beyond this it waits for the store.
    """

    live_seconds: float
    ready_seconds: float

    @classmethod
    def of(cls, lease_seconds: float, poll_seconds: float) -> LoopLimits:
        """Return the limits for the leases of a queue, and the pauses of its workers."""
        live_seconds = poll_seconds + max(MIN_LOOP_SECONDS, LEASES_PER_LOOP * lease_seconds)
        return cls(live_seconds, poll_seconds + ANSWER_SECONDS)


def is_live(processes: Sequence[ProcessStatus], limits: LoopLimits) -> bool:
    """Return whether the loop of every process goes round."""
    return all(each.turned_seconds < limits.live_seconds for each in processes)


def is_ready(processes: Sequence[ProcessStatus], limits: LoopLimits) -> bool:
    """Return whether a process takes tasks."""
    return any(each.takes_tasks and each.turned_seconds < limits.ready_seconds for each in processes)


class HealthServer:
    """Answers `/live` and `/ready` in a thread, as long as the block of this context manager lasts."""

    def __init__(
        self, host: str, port: int, limits: LoopLimits, processes: Callable[[], Sequence[ProcessStatus]]
    ) -> None:
        """Listen.

        Args:
            host: Address to listen on.
            port: Port; 0 for a free one.
            limits: How long a round of a loop may take.
            processes: Returns the status of the processes.

        Raises:
            ValueError: If it cannot listen there.
        """
        checks = {
            "/live": lambda: is_live(processes(), limits),
            "/ready": lambda: is_ready(processes(), limits),
        }

        def answer(path: str) -> HttpResponse:
            check = checks.get(path)
            if check is None:
                return _json(HTTPStatus.NOT_FOUND, {"error": f"no such page; use {' or '.join(checks)}"})
            status = HTTPStatus.OK if check() else HTTPStatus.SERVICE_UNAVAILABLE
            return _json(status, {"processes": [each.as_json() for each in processes()]})

        self._server = HttpServer(answer, host, port, "health_port")
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="freshq-health", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _json(status: HTTPStatus, values: dict[str, Any]) -> HttpResponse:
    return HttpResponse(status, "application/json", json.dumps(values).encode())
