"""Leases that are fresh: a claim never returns one of which much has passed already."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from freshq.errors import LeaseLost, StoreError
from freshq.model.answers import Claim, held_task
from freshq.model.task import TaskStatus
from freshq.stores.base import Guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.queue.core import Core

logger = logging.getLogger(__name__)

# The part of its lease that a claim has left when it is returned, at least.
MIN_PART_LEFT: Final = 0.9
# If one lease must be extended, those with less than this part left are too.
EXTENDED_PART: Final = 0.95
# While some leases are extended, others age.
MAX_EXTENSIONS: Final = 2


def with_fresh_leases(core: Core, claims: Sequence[Claim], lease_seconds: float) -> list[Claim]:
    """Extend the leases that a slow claim has used up in part; leave out the claims that stay short.

    Args:
        core: The queue.
        claims: What was claimed.
        lease_seconds: Length of the leases.

    Returns:
        The claims with at least `MIN_PART_LEFT` of their lease, in the same order.

    Raises:
        StoreError: If the store did not answer, and no claim is fresh.
    """
    held = {_key(claim): claim for claim in claims}
    for _ in range(MAX_EXTENSIONS):
        if not _aged(core, held, lease_seconds * MIN_PART_LEFT):
            break
        _extend_aged(core, held, lease_seconds)
    for claim in _aged(core, held, lease_seconds * MIN_PART_LEFT):
        _release(core, held.pop(_key(claim)))
    return [held[_key(claim)] for claim in claims if _key(claim) in held]


def _extend_aged(core: Core, held: dict[tuple[str, str], Claim], lease_seconds: float) -> None:
    """Extend the leases that have aged; forget the claims whose lease could not be extended."""
    aged = _aged(core, held, lease_seconds * EXTENDED_PART)
    for claim in aged:
        del held[_key(claim)]
    try:
        held |= {_key(claim): claim for claim in _extended(core, aged, lease_seconds)}
    except StoreError:
        if not held:
            raise
        logger.warning("the leases of %d claims could not be extended", len(aged), exc_info=True)


def _key(claim: Claim) -> tuple[str, str]:
    # A slow claim may lose a task and take it again, under another token.
    return claim.task.task_id, claim.token


def _aged(core: Core, held: Mapping[tuple[str, str], Claim], seconds: float) -> list[Claim]:
    """Return the claims whose lease has less than `seconds` left."""
    # Times are whole microseconds.
    until = core.now() + seconds - 1e-6
    return [claim for claim in held.values() if claim.lease_until < until]


def _extended(core: Core, claims: Sequence[Claim], lease_seconds: float) -> list[Claim]:
    """Return the claims that are still held, their leases counted from now."""
    now = core.now()
    lease_until = round(now + lease_seconds, 6)
    changes = [
        (
            core.lifecycle.extended(held_task(claim), now, lease_until),
            Guard(TaskStatus.TAKEN, lease_token=claim.token),
        )
        for claim in claims
    ]
    stored = core.store.replace_many(changes)
    return [Claim.of(task) for task in stored if task is not None]


def _release(core: Core, claim: Claim) -> None:
    """Return a task to its line; if that fails, it is recovered when its lease expires."""
    try:
        core.settle(claim, core.lifecycle.released(held_task(claim), core.now()))
    except (LeaseLost, StoreError):
        logger.warning(
            "task %s could not be released; it returns when its lease expires",
            claim.task.task_id,
            exc_info=True,
        )
