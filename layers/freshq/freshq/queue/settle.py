"""Settle and extend claims; every verb is conditional on the claim's token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.errors import FreshqError
from freshq.model.answers import Claim
from freshq.model.checks import checked_seconds
from freshq.model.lifecycle import SERVED, Settlement, checked_settlements, rounds
from freshq.model.task import Task, Verb, checked_progress
from freshq.model.telemetry import SettleSpan
from freshq.queue.core import Verbs
from freshq.stores.base import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence


class Settling(Verbs):
    """Settles and extends claims."""

    def complete(self, claim: Claim, *, result: Any = None) -> Task:
        """Settle a claim as SUCCESS.

        Args:
            claim: What `claim` returned.
            result: Any JSON value, kept with the task.

        Raises:
            LeaseLost: If the claim no longer holds its task.
            ValueError: If the result is not JSON, or too large.

        Examples:
            >>> queue.complete(claim, result={"price": 42}).status.value
            'SUCCESS'
        """
        if self._core.encode is not None:
            result = self._core.encode(result, "result")
        return self._core.settle(Settlement(claim, Verb.COMPLETE, result=result))

    def settle_many(self, settlements: Sequence[Settlement]) -> list[Task | FreshqError]:
        """Settle claims, each in its own way, in one call if the store supports it.

        On SQL databases it takes one statement for all tasks that end, and one for all tasks that return to
        their lines.

        Args:
            settlements: How each claim should end. If the queue has a codec, results must be encoded. If a
                task is settled twice, the first settlement counts.

        Returns:
            For each settlement, in order: its task; LeaseLost if the claim no longer holds it; or StoreError
            if it is unknown whether it was stored. Then settle it again: a stored settlement is recognized.

        Raises:
            ValueError: If an argument is wrong; nothing was settled.

        Examples:
            >>> [task.status.value for task in queue.settle_many([Settlement.fail(claim, "no symbol")])]
            ['FAILURE']
        """
        settlements = checked_settlements(settlements)
        answers: dict[int, Task | FreshqError] = {}
        for places in rounds([settlement.claim.task.task_id for settlement in settlements]):
            some = [settlements[place] for place in places]
            answers |= zip(places, self._settle_observed(some), strict=True)
        return [answers[place] for place in range(len(settlements))]

    def _settle_observed(self, settlements: Sequence[Settlement]) -> list[Task | FreshqError]:
        observer = self._core.observer
        if observer is None:
            return self._settle_each(settlements)
        span = SettleSpan(self.name, [(each.claim.task, each.verb) for each in settlements])
        with observer.settle(span):
            span.answers = answers = self._settle_each(settlements)
        return answers

    def _settle_each(self, settlements: Sequence[Settlement]) -> list[Task | FreshqError]:
        """Settle claims of different tasks."""
        core = self._core
        now = core.begin_now()
        life = core.rules.lifecycle
        settled = [(each.next_version(life, now, core.uniform), each.claim.token) for each in settlements]
        answers: list[Task | FreshqError] = []
        for each, answer in zip(settlements, core.store.settle_many(settled), strict=True):
            if isinstance(answer, Conflict):
                answers.append(core.lease_lost(each.claim, answer.current))
            elif isinstance(answer, FreshqError):
                answers.append(answer)
            else:
                answers.append(core.ended(each.claim, answer, is_served=each.verb in SERVED))
        core.store.notifier.changed(self.name, [each for each in answers if isinstance(each, Task)])
        if core.limits.units_due:
            core.limits.correct_units()
        return answers

    def fail(self, claim: Claim, *, error: str | None = None) -> Task:
        """Settle a claim as FAILURE, a dead letter, even if attempts are left.

        Raises:
            LeaseLost: If the claim no longer holds its task.

        Examples:
            >>> queue.fail(claim, error="no symbol").status.value
            'FAILURE'
        """
        return self._core.settle(Settlement.fail(claim, error))

    def retry(self, claim: Claim, *, error: str | None = None, delay_seconds: float | None = None) -> Task:
        """Return a task to its line for another attempt, or make it a dead letter after its last one.

        Args:
            claim: What `claim` returned.
            error: Why the attempt failed.
            delay_seconds: Delay before the next attempt; None for exponential backoff with full jitter.

        Raises:
            LeaseLost: If the claim no longer holds its task.

        Examples:
            >>> queue.retry(claim, error="status 503", delay_seconds=5).status.value
            'PENDING'
        """
        return self._core.settle(Settlement.retry(claim, error, delay_seconds))

    def release(self, claim: Claim, *, delay_seconds: float = 0) -> Task:
        """Return a task to its line. The attempt is not counted.

        Args:
            claim: What `claim` returned.
            delay_seconds: Delay before the task can be claimed again.

        Raises:
            LeaseLost: If the claim no longer holds its task.

        Examples:
            >>> queue.release(claim).attempts
            0
        """
        return self._core.settle(Settlement.release(claim, delay_seconds))

    def extend(
        self,
        claim: Claim,
        *,
        lease_seconds: float | None = None,
        progress: float | None = None,
        step: str | None = None,
    ) -> Claim:
        """Extend a lease to `lease_seconds` from now. A lease is never shortened.

        Args:
            claim: What `claim` returned.
            lease_seconds: How long the lease should last from now; None for the queue's default.
            progress: The finished part of the work, from 0 to 1, kept with the task; None: unchanged.
            step: With `progress`: the current step, up to 200 characters; longer strings are truncated.

        Returns:
            The claim with its new lease and progress, and the same token. Settle this claim: the task keeps
            the progress of the claim that settles it.

        Raises:
            LeaseLost: If the claim no longer holds its task.
            ValueError: If an argument is wrong.

        Examples:
            >>> claim = queue.extend(claim, lease_seconds=120, progress=0.5, step="half of it")
            >>> claim.task.progress_fraction
            0.5
        """
        if lease_seconds is None:
            lease_seconds = self._core.rules.config.lease_seconds
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        if progress is None and step is not None:
            raise ValueError("step: only with progress, a number from 0 to 1")
        reported = None if progress is None else checked_progress(progress, step)
        now = self._core.now()
        extended = self._core.extend(claim, now, round(now + lease_seconds, 6), reported)
        return Claim.of(extended)
