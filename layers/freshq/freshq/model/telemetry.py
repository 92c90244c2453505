"""Hooks for telemetry. The base class records nothing; `OpenTelemetry` records spans and metrics."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.errors import FreshqError
    from freshq.model.answers import Claim, Receipt
    from freshq.model.task import Task, Verb

_NOTHING = nullcontext()

Answer = TypeVar("Answer", bound="Task | FreshqError")


class RunScope:
    """One run of a task."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def trace_id(self) -> str | None:
        """The trace that it belongs to; None if it has none."""
        return self.task.trace_id

    def current(self) -> AbstractContextManager[object]:
        """Return a block inside which code belongs to the run, and so do coroutines started there."""
        return _NOTHING

    def end(self, error: BaseException | None) -> None:
        """End the run.

        Args:
            error: What the runner raised; None if it returned.
        """


class Telemetry:
    """Runs each verb and records nothing. A subclass records it, and must not change the answer.

    Several threads call it. An error of its own is logged once, and does not change the answer either.
    """

    def put(
        self, queue: str, tasks: Sequence[Task], write: Callable[[Sequence[Task]], list[Receipt]]
    ) -> list[Receipt]:
        """Return what the write of new tasks returns.

        Args:
            queue: Name of the queue.
            tasks: The tasks.
            write: Writes them; a subclass may give it the tasks with a trace context.
        """
        del queue
        return write(tasks)

    def claim(self, queue: str, take: Callable[[], list[Claim]]) -> list[Claim]:
        """Return what a claim returns."""
        del queue
        return take()

    def settle(
        self, queue: str, ends: Sequence[tuple[Task, Verb]], write: Callable[[], list[Answer]]
    ) -> list[Answer]:
        """Return what the write of settlements returns.

        Args:
            queue: Name of the queue.
            ends: The claimed tasks, and how each is settled.
            write: Settles them; returns for each, in order, its task or an error.
        """
        del queue, ends
        return write()

    def run(self, task: Task) -> RunScope:
        """Return the scope of a run that begins."""
        return RunScope(task)
