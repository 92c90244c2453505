"""What a worker tells of its runs: at the end, and to those who watch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from freshq.model.answers import Claim
    from freshq.policy.order import OrderSwitch

logger = logging.getLogger(__name__)


class Outcome(StrEnum):
    """How one run of a task ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    RELEASED = "released"
    LEASE_LOST = "lease_lost"
    UNSETTLED = "unsettled"


@dataclass
class RunReport:
    """What a worker did.

    Attributes:
        claimed: Tasks taken.
        outcomes: How many runs ended in which way.
        overran: Ids of tasks that ran past `max_run_seconds`, and whose leases were let go.
        unfinished: Ids of tasks that still ran when the time to wait for them was over, those that overran
            included; they stay taken until their lease runs out.
        idle: Whether it stopped because nothing was left to claim.
    """

    claimed: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    overran: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    idle: bool = False

    @property
    def progress(self) -> int:
        """Runs that brought a task nearer to its end."""
        ended = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RETRIED)
        return sum(self.outcomes[outcome] for outcome in ended)


class Observer(Protocol):
    """Is told what a worker does, from several threads."""

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        """Take note that a task was claimed at this age."""

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Take note of how a run ended."""

    def overran(self, claim: Claim, run_seconds: float) -> None:
        """Take note that a run is past its limit and its lease let go; it may still end, and settle."""

    def switched(self, switch: OrderSwitch) -> None:
        """Take note that an adaptive order turned round."""


class LoggingObserver:
    """Writes what a worker does to the log."""

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        """Log a claim."""
        logger.debug("claimed %s at the age of %.3f s", claim.task.task_id, age_seconds)

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Log how a run ended; what did not succeed stands out."""
        level = logging.DEBUG if outcome is Outcome.SUCCEEDED else logging.WARNING
        logger.log(level, "task %s %s after %.3f s: %s", claim.task.task_id, outcome, run_seconds, error)

    def overran(self, claim: Claim, run_seconds: float) -> None:
        """Log that a run is past its limit."""
        logger.error(
            "task %s still runs after %.3f s: its lease is let go, its thread goes on",
            claim.task.task_id,
            run_seconds,
        )

    def switched(self, switch: OrderSwitch) -> None:
        """Log a switch."""
        end = "newest" if switch.newest_first else "oldest"
        logger.info("order: %s first, the oldest task is %.3f s old", end, switch.oldest_age_seconds)
