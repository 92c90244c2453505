"""The default runner: call a demonstration downstream with little capacity.

Replace it with your own: set the template's parameter Runner to your ``module:function``.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from freshq.aws.environment import EnvironmentSettings
from freshq.model.answers import Busy, Reject

if TYPE_CHECKING:
    from freshq.model.task import Task


class DemoSettings(EnvironmentSettings):
    """The demonstration downstream, from FRESHQ_DEMO_CAPACITY and FRESHQ_DEMO_TASK_SECONDS.

    Attributes:
        capacity: Maximum number of calls at a time.
        task_seconds: Duration of a call.
    """

    PREFIX: ClassVar[str] = "FRESHQ_DEMO_"

    capacity: Annotated[int, Field(ge=1)] = 3
    task_seconds: Annotated[float, Field(gt=0)] = 1.0


class DemoDownstream:
    """A legacy system that serves few calls at a time and has no queue."""

    def __init__(self, capacity: int, task_seconds: float) -> None:
        """Serve up to `capacity` calls at a time; each takes `task_seconds`."""
        self._free = threading.BoundedSemaphore(capacity)
        self._task_seconds = task_seconds

    def call(self) -> float:
        """Do one unit of work, and return its duration in seconds.

        Raises:
            Busy: If it has no free capacity.
        """
        if not self._free.acquire(blocking=False):
            raise Busy("the demonstration downstream has no free capacity")
        try:
            time.sleep(self._task_seconds)
        finally:
            self._free.release()
        return self._task_seconds


@cache
def _downstream() -> DemoDownstream:
    settings = DemoSettings.load()
    return DemoDownstream(settings.capacity, settings.task_seconds)


def run(task: Task) -> dict[str, Any]:
    """Call the demonstration downstream for a task.

    Rejects a task whose payload has ``"reject": true``, to demonstrate dead letters.
    """
    if isinstance(task.payload, dict) and task.payload.get("reject"):
        raise Reject("the payload asked to be rejected")
    return {"served_seconds": _downstream().call()}


def canary(_task: Task) -> None:
    """Show before a deployment that this version can work: that its settings are right."""
    DemoSettings.load()
