"""Reasons for shedding, and the test whether a task is too late to be claimed."""

from __future__ import annotations

from enum import StrEnum


class ShedReason(StrEnum):
    """Why a task was shed. Every shed task has one reason, and is counted under it.

    EXPIRED: its deadline passed while it waited. RESERVE: a claim skipped it because less time was left
    than a task takes. OVERFLOW: the backlog was full. GROUP: the backlog was full, and its group held
    more than its share. CODEL: it had waited more than twice CoDel's target. DOOR: admission control
    rejected it. DEADLINE: it was put by a run whose deadline leaves it too little time.
    """

    EXPIRED = "expired"
    RESERVE = "reserve"
    OVERFLOW = "overflow"
    GROUP = "group"
    CODEL = "codel"
    DOOR = "door"
    DEADLINE = "deadline"


def too_late(now: float, deadline: float, reserve_seconds: float) -> ShedReason | None:
    """Return why a task must not be claimed; None if enough time is left.

    Args:
        now: Current time in seconds.
        deadline: When the task is stale, in seconds.
        reserve_seconds: How long it is expected to take.
    """
    if deadline <= now:
        return ShedReason.EXPIRED
    return ShedReason.RESERVE if deadline <= now + reserve_seconds else None
