"""Settling claims. Every verb is conditional on the token of the claim."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from freshq.errors import LeaseLost
from freshq.model.answers import Claim, held_task
from freshq.model.checks import checked_error, checked_result, checked_seconds
from freshq.model.lifecycle import new_token
from freshq.queue.core import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.task import Task


class Settling(Verbs):
    """Settles and extends claims."""

    def complete(self, claim: Claim, result: Any = None) -> Task:  # noqa: ANN401 - any JSON value
        """Settle a claim as SUCCESS.

        Args:
            claim: What `claim` returned.
            result: Any JSON value, kept with the task.

        Raises:
            LeaseLost: If the claim no longer holds its task.
            ValueError: If the result is not JSON, or too large.
        """
        result = checked_result(result, held_task(claim).payload)
        done = self._core.settle(claim, self._core.lifecycle.completed(held_task(claim), self.now(), result))
        return self._core.served(claim, done)

    def complete_many(
        self,
        claims: Sequence[Claim],
        results: Sequence[Any] | None = None,
    ) -> list[Task | LeaseLost]:
        """Settle claims as SUCCESS, in a SQL database with one statement for all that have no result.

        Args:
            claims: What `claim` returned.
            results: One JSON value per claim; None for no results.

        Returns:
            For each claim, in order: its task, or LeaseLost if it no longer holds the task.

        Raises:
            ValueError: If a result is wrong; nothing was settled.
        """
        results = [None] * len(claims) if results is None else results
        if len(results) != len(claims):
            msg = f"results: must have one entry per claim, {len(claims)}, got {len(results)}"
            raise ValueError(msg)
        now = self.now()
        held = [held_task(claim) for claim in claims]
        # One version per lease: a repeated statement recognizes its own write by it.
        versions = {claim.token: new_token() for claim in claims}
        kept = [checked_result(result, task.payload) for task, result in zip(held, results, strict=True)]
        ended = [
            self._core.lifecycle.completed(task, now, result, versions[claim.token])
            for claim, task, result in zip(claims, held, kept, strict=True)
        ]
        together = self._end_together(ended, [claim.token for claim in claims])
        return [
            self._core.served(claim, task)
            if (task.task_id, claim.token) in together
            else self._settled_or_lost(claim, task)
            for claim, task in zip(claims, ended, strict=True)
        ]

    def _end_together(self, ended: Sequence[Task], tokens: Sequence[str]) -> set[tuple[str, str]]:
        """Store the ends of tasks without a result, one call per lease; return their ids and tokens."""
        by_token: defaultdict[str, list[Task]] = defaultdict(list)
        for task, token in zip(ended, tokens, strict=True):
            if task.result is None:
                by_token[token].append(task)
        return {
            (task_id, token)
            for token, tasks in by_token.items()
            for task_id in self._core.store.end_many(tasks, token)
        }

    def fail(self, claim: Claim, error: str | None = None) -> Task:
        """Settle a claim as FAILURE, a dead letter, even if attempts are left.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        failed = self._core.lifecycle.failed(held_task(claim), self.now(), checked_error(error))
        return self._core.served(claim, self._core.settle(claim, failed))

    def retry(self, claim: Claim, error: str | None = None, delay_seconds: float | None = None) -> Task:
        """Return a task to its line for another attempt, or make it a dead letter after its last one.

        Args:
            claim: What `claim` returned.
            error: Why the attempt failed.
            delay_seconds: Delay before the next attempt; None for exponential backoff with full jitter.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        if delay_seconds is not None:
            checked_seconds("delay_seconds", delay_seconds)
        error = checked_error(error)
        core = self._core
        changed = core.lifecycle.retried(held_task(claim), core.now(), error, delay_seconds, core.uniform())
        return core.settle(claim, changed)

    def is_last_attempt(self, claim: Claim) -> bool:
        """Return whether a retry would make the task a dead letter."""
        return claim.task.attempts >= self._core.config.max_attempts

    def release(self, claim: Claim, delay_seconds: float = 0) -> Task:
        """Return a task to its line. The attempt is not counted.

        Args:
            claim: What `claim` returned.
            delay_seconds: Delay before the task can be claimed again.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        checked_seconds("delay_seconds", delay_seconds)
        released = self._core.lifecycle.released(held_task(claim), self.now(), delay_seconds)
        return self._core.settle(claim, released)

    def extend(self, claim: Claim, lease_seconds: float) -> Claim:
        """Extend a lease to `lease_seconds` from now. A lease that already ends later stays as it is.

        Returns:
            The claim with the end of its lease and the same token.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        now = self.now()
        extended = self._core.extend(claim, now, round(now + lease_seconds, 6))
        return Claim(extended, claim.token, extended.lease_until or 0.0)

    def _settled_or_lost(self, claim: Claim, task: Task) -> Task | LeaseLost:
        try:
            return self._core.served(claim, self._core.settle(claim, task))
        except LeaseLost as lost:
            return lost
