"""Filter the tasks that a claim took: by fresh leases, by limits, and by how long they waited."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from freshq.errors import RefusedError, StoreError
from freshq.model.answers import Claim
from freshq.model.lifecycle import held_task
from freshq.policy.shedding import MAX_SHED_BEHIND, ShedReason
from freshq.queue.reading import oldest_tasks
from freshq.queue.shared.limits import NO_DELAYS
from freshq.stores.base import Guard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.policy.groups import GroupRoom
    from freshq.queue.core import Core
    from freshq.queue.shared.admission import LineCodel
    from freshq.stores.lines import ClaimRequest

logger = logging.getLogger(__name__)
# Minimum part of its lease that a claim has left when it is returned.
MIN_PART_LEFT: Final = 0.9
# If one lease must be extended, so are leases with less than this part left.
EXTENDED_PART: Final = 0.95
# Rounds of extensions in one claim: while some leases are extended, others age.
MAX_EXTENSIONS: Final = 2
# Minimum time between two warnings of slow claims.
WARNING_SECONDS: Final = 60.0
# Maximum number of lines in which a claim sheds tasks behind a shed task.
MAX_SHED_LINES: Final = 4


def fit_to_run(core: Core, claims: list[Claim], lease_seconds: float, began: float) -> list[Claim]:
    """Return the claims whose lease is fresh and whose deadline has not passed; give the others back.

    Args:
        core: The queue.
        claims: The claims.
        lease_seconds: Length of the leases.
        began: When the claim began, in seconds.

    Returns:
        The claims with at least `MIN_PART_LEFT` of their lease left, in the same order.

    Raises:
        StoreError: If the store did not answer, and no claim is fresh.
    """
    now = core.now()
    while True:
        if [claim for claim in claims if claim.lease_until < now + lease_seconds * MIN_PART_LEFT - 1e-6]:
            claims, now = with_fresh_leases(core, claims, lease_seconds, began)
        live_until = core.rules.lifecycle.live_until
        stale = [claim for claim in claims if live_until(claim.task) <= now]
        if not stale:
            return claims
        claims = [claim for claim in claims if live_until(claim.task) > now]
        _give_back(core, stale)
        now = core.now()  # giving back takes time


def with_fresh_leases(
    core: Core, claims: list[Claim], lease_seconds: float, began: float
) -> tuple[list[Claim], float]:
    """Extend leases that a slow claim has partly used up; give back the claims whose leases stay short.

    Returns:
        The other claims, and the time at which their leases were fresh, in seconds.
    """
    least_seconds = lease_seconds * MIN_PART_LEFT
    held = {_key(claim): claim for claim in claims}
    for _ in range(MAX_EXTENSIONS):
        if not _aged(held.values(), core.now() + least_seconds):
            break
        _extend_aged(core, held, lease_seconds)
    now, extended = core.now(), len(held)
    while short := _aged(held.values(), now + least_seconds):
        _give_back(core, [held.pop(_key(claim)) for claim in short])
        now = core.now()  # giving back takes time
    if len(held) < extended or not held:
        _warn_of_slow_claim(core, len(claims) - len(held), lease_seconds, began, now)
    return [held[key] for key in map(_key, claims) if key in held], now


def _warn_of_slow_claim(core: Core, lost: int, lease_seconds: float, began: float, now: float) -> None:
    """Warn, at most once a minute, that a claim was too slow to keep the leases of all its tasks."""
    if 0 <= now - core.warned_of_slow_claim_at < WARNING_SECONDS:
        return
    core.warned_of_slow_claim_at = now
    logger.warning(
        "queue %r: a claim took %.3g s, too long for lease_seconds=%g, and gave up %d of its tasks; "
        "set lease_seconds to %d or more, claim fewer tasks at a time, or find out why the store is slow",
        core.name,
        now - began,
        lease_seconds,
        lost,
        max(1, math.ceil((now - began) / (1 - MIN_PART_LEFT) - 1e-6)),
    )


def _extend_aged(core: Core, held: dict[tuple[str, str], Claim], lease_seconds: float) -> None:
    """Extend aged leases; drop the claims whose lease could not be extended."""
    aged = _aged(held.values(), core.now() + lease_seconds * EXTENDED_PART)
    for claim in aged:
        del held[_key(claim)]
    try:
        held |= {_key(claim): claim for claim in extended_together(core, aged, lease_seconds)}
    except StoreError:
        if not held:
            raise
        logger.warning("the leases of %d claims could not be extended", len(aged), exc_info=True)


def _key(claim: Claim) -> tuple[str, str]:
    # A slow claim may lose a task and take it again, under another token.
    return claim.task.task_id, claim.token


def _aged(claims: Iterable[Claim], until: float) -> list[Claim]:
    """Return the claims whose lease ends before a time; times are whole microseconds."""
    return [claim for claim in claims if claim.lease_until < until - 1e-6]


def extended_together(core: Core, claims: Sequence[Claim], lease_seconds: float) -> list[Claim]:
    """Return the claims that are still held, their leases counted from now."""
    now = core.now()
    lease_until = round(now + lease_seconds, 6)
    changes = [
        (core.rules.lifecycle.extended(held_task(claim), now, lease_until), Guard.unchanged(held_task(claim)))
        for claim in claims
    ]
    stored = core.store.replace_many(changes)
    extended = [
        (claim, new)
        for claim, task in zip(claims, stored, strict=True)
        if (new := task or _extended_alone(core, claim, now, lease_until)) is not None
    ]
    core.limits.extended([new for _claim, new in extended], now)
    lapsed = [new for claim, new in extended if core.limits.lapsed(claim.task)]
    _give_back(core, list(map(Claim.of, lapsed)))
    return [Claim.of(new) for _claim, new in extended if new not in lapsed]


def _extended_alone(core: Core, claim: Claim, now: float, lease_until: float) -> Task | None:
    """Extend a lease whose row was changed or locked in between; return None if that fails."""
    try:
        return core.extend(claim, now, lease_until)
    except RefusedError:  # another process has the task
        return None
    except StoreError:
        logger.warning("the lease of task %s could not be extended", claim.task.task_id, exc_info=True)
        return None


def _give_back(core: Core, claims: Sequence[Claim], delays: Mapping[str, float] = NO_DELAYS) -> None:
    """Return tasks to their lines, some after delays; the stale ones are shed, and no attempt is counted."""
    now, released = core.now(), core.rules.lifecycle.released
    each = [
        (held_task(claim), delays.get(claim.task.task_id, 0), Guard.held(claim.token)) for claim in claims
    ]
    releases = [(released(task, now, seconds), guard) for task, seconds, guard in each]
    try:
        if releases:
            core.store.replace_many(releases)
            core.schedulers.returned([claim.task for claim in claims])
            core.limits.stopped_running([claim.task for claim in claims])
    except StoreError:
        logger.warning(
            "queue %r: could not release %d tasks; each returns when its lease expires",
            core.name,
            len(claims),
            exc_info=True,
        )


def within_limits(core: Core, request: ClaimRequest, room: GroupRoom, claims: list[Claim]) -> list[Claim]:
    """Return the claims that the limits of groups and kinds admit; release the others.

    Those whose kinds have no room are put off: the store shows no kinds, so the next claim would take them
    again.

    Args:
        core: The queue.
        request: The request of the claim, which learns when there is room again.
        room: The room that the limits left when the claim began.
        claims: The tasks that it took.

    Raises:
        StoreError: If the store did not answer; all were released.
    """
    try:
        admission = core.limits.admitted(claims)
    except StoreError:
        _give_back(core, claims)
        raise
    put_off = admission.put_off
    _give_back(core, [claim for claim in claims if claim not in admission.claims], put_off)
    if put_off:
        core.upkeep.delayed()
    request.room_in_seconds = min(room.wait_seconds, admission.wait_seconds)
    request.search_incomplete |= bool(put_off)
    return admission.claims


def shed_late(core: Core, codel: LineCodel, to_shed: Sequence[Claim]) -> float:
    """Shed claimed tasks that waited too long, and late tasks behind them, in one batch of writes.

    A claimed task that cannot be shed is recovered when its lease expires.

    Args:
        core: The queue.
        codel: Its CoDel.
        to_shed: The claims to shed; one or more.

    Returns:
        The longest wait in seconds of the tasks that the claim may take next; infinite if no task to shed is
        left.
    """
    now = core.now()
    oldest = _oldest_behind(core, to_shed, now)
    late = [task for task in oldest if codel.sheds_behind(task, now)]
    _store_as_shed(core, to_shed, late, now)
    complete = oldest and len(oldest) < MAX_SHED_BEHIND and codel.has_one_line
    return math.inf if complete else allowed_wait_seconds(core)


def _oldest_behind(core: Core, to_shed: Sequence[Claim], now: float) -> list[Task]:
    """Return the oldest tasks in the lines of shed tasks; none if they cannot be read."""
    level = to_shed[0].task.priority
    groups = dict.fromkeys(claim.task.group for claim in to_shed if claim.task.priority == level)
    # CoDel does not shed tasks that the reserve keeps from claims.
    reserve_seconds = core.rules.reserve.seconds(lambda: now)
    created_after = now - core.rules.stale_after_seconds + reserve_seconds
    some = [*groups][:MAX_SHED_LINES]
    try:
        oldest = oldest_tasks(core.store, core.name, now, created_after, MAX_SHED_BEHIND, some, level)
    except StoreError:
        logger.warning("queue %r: could not read what else waited too long", core.name, exc_info=True)
        return []
    return [task for task in oldest if task.stale_at > now + reserve_seconds]


def _store_as_shed(core: Core, to_shed: Sequence[Claim], late: Sequence[Task], now: float) -> None:
    life = core.rules.lifecycle
    changes = [
        (life.shed_claimed(held_task(claim), now, ShedReason.CODEL), Guard.held(claim.token))
        for claim in to_shed
    ]
    changes += [(life.shed(task, now, ShedReason.CODEL), Guard.unchanged(task)) for task in late]
    stored: Sequence[Task | None] = []
    problem = None
    try:
        stored = core.store.replace_many(changes)
    except StoreError as error:
        problem = error
    core.limits.stopped_running([claim.task for claim in to_shed])
    lost = len(to_shed) - sum(task is not None for task in stored[: len(to_shed)])
    if lost:
        logger.warning(
            "%d tasks could not be shed; each returns when its lease expires", lost, exc_info=problem
        )
    if shed := sum(task is not None for task in stored):
        core.rules.meter.shed_early(now, ShedReason.CODEL, shed)


def allowed_wait_seconds(core: Core) -> float:
    """Return the longest wait in seconds that the queue's CoDel allows; infinite if it has none."""
    rule = core.rules.config.codel
    return math.inf if rule is None else rule.longest_wait_seconds
