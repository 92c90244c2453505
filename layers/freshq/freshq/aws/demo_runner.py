"""The default runner: a demonstration downstream that can do little at a time, and takes its time.

Replace it by your own: set the template's parameter Runner to your ``module:function``.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from freshq.model.outcomes import Busy, Reject

if TYPE_CHECKING:
    from freshq.model.task import Task


class DemoSettings(BaseSettings):
    """The demonstration downstream, from FRESHQ_DEMO_CAPACITY and FRESHQ_DEMO_TASK_SECONDS.

    Attributes:
        capacity: Calls at a time; one more is refused.
        task_seconds: How long a call takes.
    """

    model_config = SettingsConfigDict(env_prefix="FRESHQ_DEMO_")

    capacity: Annotated[int, Field(ge=1)] = 3
    task_seconds: Annotated[float, Field(gt=0)] = 1.0


class DemoDownstream:
    """A legacy system with few places and no queue of its own."""

    def __init__(self, capacity: int, task_seconds: float) -> None:
        """Open so many places; a call takes `task_seconds`."""
        self._places = threading.BoundedSemaphore(capacity)
        self._task_seconds = task_seconds

    def call(self) -> float:
        """Do one unit of work, and return how long it took in seconds.

        Raises:
            Busy: If every place is taken.
        """
        if not self._places.acquire(blocking=False):
            raise Busy("the demonstration downstream has no free place")
        try:
            time.sleep(self._task_seconds)
        finally:
            self._places.release()
        return self._task_seconds


@cache
def _downstream() -> DemoDownstream:
    settings = DemoSettings()
    return DemoDownstream(settings.capacity, settings.task_seconds)


def run(task: Task) -> dict[str, Any]:
    """Call the demonstration downstream for a task.

    A payload with ``"reject": true`` is refused for good, to show what becomes of it.
    """
    if isinstance(task.payload, dict) and task.payload.get("reject"):
        raise Reject("the payload asked to be rejected")
    return {"served_seconds": _downstream().call()}
