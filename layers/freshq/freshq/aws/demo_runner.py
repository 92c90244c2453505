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


@cache
def _downstream() -> tuple[threading.BoundedSemaphore, float]:
    """Return the free capacity of the downstream, and the duration of a call in seconds."""
    settings = DemoSettings.load()
    return threading.BoundedSemaphore(settings.capacity), settings.task_seconds


def run(task: Task) -> dict[str, Any]:
    """Call the demonstration downstream, which serves few calls at a time and has no queue.

    Rejects a task whose payload has ``"reject": true``, to demonstrate dead letters.

    Raises:
        Busy: If the downstream has no free capacity.
        Reject: If the payload asks for it.
    """
    if isinstance(task.payload, dict) and task.payload.get("reject"):
        raise Reject("the payload asked to be rejected")
    free, task_seconds = _downstream()
    if not free.acquire(blocking=False):
        raise Busy("the demonstration downstream has no free capacity")
    try:
        time.sleep(task_seconds)
    finally:
        free.release()
    return {"served_seconds": task_seconds}


def canary(_task: Task) -> None:
    """Show before a deployment that this version can work: that its settings are right."""
    DemoSettings.load()
