"""Why a replay of the recorded policy may be far from the recording, as far as the figures show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.report.words import NO_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

# What explains at least this share of a difference is probably its reason.
EXPLAINED_SHARE: Final = 0.5


def difference(check: Mapping[str, Any]) -> str:
    """Return how far the replay of a queue is from the recording, and the probable reason, as a line.

    Args:
        check: The check of a replay, not within its tolerance.
    """
    recorded, replayed = check["served_in_time_recorded"], check["served_in_time_replayed"]
    return (
        f"queue {check['queue'] or NO_NAME}: the replay of {check['policy']} differs from the recording by "
        f"{check['difference_ratio']:.1%}: {replayed:,} tasks in time, {recorded:,} in the recording. "
        f"{_reason(check, replayed - recorded)}"
    )


def _reason(check: Mapping[str, Any], surplus: int) -> str:
    """Return the reason that the figures support, or that they support none.

    Args:
        check: The check.
        surplus: How many more tasks are in time in the replay.
    """
    needed = EXPLAINED_SHARE * abs(surplus) / max(1, check["served_in_time_replayed"])
    idle, extra, inverted = (check[f"{name}_ratio"] for name in ("idle", "surplus", "inverted"))
    if surplus > 0 and check["shed_early"] >= EXPLAINED_SHARE * surplus:
        return (
            f"Probably because {check['shed_early']:,} tasks were shed early or at the door, which no replay "
            "does. Expect the other scenarios to be as optimistic"
        )
    if surplus > 0 and idle >= needed:
        return (
            "Probably the machine was starved or workers paused while it was recorded: "
            f"{idle:.0%} of the servers were idle while tasks waited. "
            f"Expect the other scenarios to be as optimistic{_servers(check)}"
        )
    if surplus < 0 and extra >= needed:
        return (
            f"Probably there were more servers at times: {extra:.0%} more tasks were in progress than on the "
            f"{check['servers']:,} servers of the replay. Expect the other scenarios to be as pessimistic"
            f"{_servers(check)}"
        )
    if check["policy"] == "lifo" and inverted >= needed:
        return (
            f"Probably tasks were served in another order: {inverted:.0%} of them were claimed while a newer "
            "one waited. Give --recorded-policy"
        )
    return "The figures do not show why. Do not rely on the other scenarios of this queue"


def _servers(check: Mapping[str, Any]) -> str:
    """Return the number of servers that suits the recording better, if there is one."""
    mean = check["mean_servers"]
    better = max(1, round(mean))
    suits = better != check["servers"] and abs(better - mean) <= check["tolerance"] * mean
    return f", or give --servers {better}" if suits else ""
