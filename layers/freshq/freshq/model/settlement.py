"""Settle several claims in one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import quoted
from freshq.model.answers import Claim, held_task
from freshq.model.checks import checked_error, checked_seconds, result_and_text
from freshq.model.lifecycle import new_token
from freshq.model.task import Verb, keep_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task

# Verbs after finished work, successful or not.
SERVED: Final = (Verb.COMPLETE, Verb.FAIL)
SETTLING: Final = (Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.RELEASE)


@dataclass(frozen=True, slots=True)
class Settlement:
    """How one claim should end. Create it with `complete`, `fail`, `retry` or `release`.

    After a lost answer it may be settled again: its own earlier write is recognized.

    Attributes:
        claim: A claim, as returned by `claim`.
        verb: The verb that settles the task.
        result: For `complete`: any JSON value, kept with the task.
        error: For `fail` and `retry`: why the attempt failed.
        delay_seconds: For `retry` and `release`: delay before the task can be claimed again; None for the
            default of the verb.
        request_token: Names the write; empty until it is first settled.
    """

    claim: Claim
    verb: Verb
    result: Any = None
    error: str | None = None
    delay_seconds: float | None = None
    request_token: str = field(default="", compare=False)
    _result_text: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is wrong.
        """
        task = held_task(self.claim)
        if self.verb not in SETTLING:
            msg = f"verb: must be one of {', '.join(SETTLING)}, got {quoted(self.verb)}"
            raise ValueError(msg)
        if self.delay_seconds is not None:
            checked_seconds("delay_seconds", self.delay_seconds)
        if self.error is not None:
            object.__setattr__(self, "error", checked_error(self.error))
        if self.result is not None:
            result, text = result_and_text(self.result, task.payload)
            object.__setattr__(self, "result", result)
            object.__setattr__(self, "_result_text", text)

    @classmethod
    def complete(cls, claim: Claim, result: Any = None) -> Settlement:
        """Return a settlement as SUCCESS.

        Args:
            claim: A claim, as returned by `claim`.
            result: Any JSON value, kept with the task.

        Raises:
            ValueError: If the result is not JSON, or too large.
        """
        return cls(claim, Verb.COMPLETE, result=result)

    @classmethod
    def fail(cls, claim: Claim, error: str | None = None) -> Settlement:
        """Return a settlement as FAILURE, a dead letter, even if attempts are left."""
        return cls(claim, Verb.FAIL, error=error)

    @classmethod
    def retry(cls, claim: Claim, error: str | None = None, delay_seconds: float | None = None) -> Settlement:
        """Return a settlement that asks for another attempt, or is FAILURE after the last one.

        Args:
            claim: A claim, as returned by `claim`.
            error: Why the attempt failed.
            delay_seconds: Delay before the next attempt; None for exponential backoff with full jitter.

        Raises:
            ValueError: If an argument is wrong.
        """
        return cls(claim, Verb.RETRY, error=error, delay_seconds=delay_seconds)

    @classmethod
    def release(cls, claim: Claim, delay_seconds: float = 0) -> Settlement:
        """Return a settlement that returns the task to its line, the attempt not counted.

        Args:
            claim: A claim, as returned by `claim`.
            delay_seconds: Delay before the task can be claimed again.

        Raises:
            ValueError: If an argument is wrong.
        """
        return cls(claim, Verb.RELEASE, delay_seconds=checked_seconds("delay_seconds", delay_seconds))

    def next_version(self, life: Lifecycle, now: float, uniform: Callable[[], float]) -> Task:
        """Return the task as it is once this settlement is stored.

        Args:
            life: The verbs under the options of the queue.
            now: Current time in seconds.
            uniform: Returns a random number from [0, 1), for the jitter of a retry.
        """
        task = held_task(self.claim)
        if not self.request_token:
            # Created as late as possible: generating a token yields to other threads, and a worker would
            # claim for one free slot while others are about to become free.
            object.__setattr__(self, "request_token", new_token())
        if self.verb is Verb.COMPLETE:
            done = life.completed(task, now, self.result, self.request_token)
            return keep_texts(done, result_text=self._result_text)
        if self.verb is Verb.FAIL:
            return life.failed(task, now, self.error, self.request_token)
        if self.verb is Verb.RETRY:
            return life.retried(task, now, self.error, self.delay_seconds, uniform(), self.request_token)
        return life.released(task, now, self.delay_seconds or 0, self.request_token)


def checked_settlements(settlements: Sequence[object]) -> list[Settlement]:
    """Check that all arguments are settlements; return them.

    Raises:
        ValueError: If one is not.
    """
    found: list[Settlement] = []
    for each in settlements:
        if not isinstance(each, Settlement):
            msg = f"settlements: must be Settlement objects, got {type(each).__name__}"
            raise ValueError(msg)
        found.append(each)
    return found


def rounds(task_ids: Sequence[str]) -> Iterator[list[int]]:
    """Yield the positions of ids in rounds without duplicates; equal ids keep their order."""
    left = list(range(len(task_ids)))
    while left:
        first = {task_ids[place]: place for place in reversed(left)}
        yield sorted(first.values())
        left = [place for place in left if first[task_ids[place]] != place]
