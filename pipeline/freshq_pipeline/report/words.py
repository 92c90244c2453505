"""Figures, times and outcomes in words."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_AS_OF: Final = "as_of_ms"
# Titles of columns with unclear names.
_TITLES: Final = {
    _AS_OF: "as of",
    "difference_share": "difference",
    "events_no_task": "events not about a task",
}
# Shown for tasks without a group and events without a queue.
NO_NAME: Final = "(none)"
MINUTE: Final = 60
HOUR: Final = 3600


def queue_name(queue: str | None) -> str:
    """Return the name of a queue as shown."""
    return queue or NO_NAME


def duration(seconds: float) -> str:
    """Return a time with at most three digits, in a suitable unit: `60 ms`, `1.2 s`, `3 min`."""
    units = ((1.0, 1000.0, "ms"), (MINUTE, 1.0, "s"), (HOUR, 1 / MINUTE, "min"))
    factor, name = next(((by, unit) for below, by, unit in units if seconds < below), (1 / HOUR, "h"))
    # Formatted twice, because `g` alone would write 1000 as 1e+03.
    return f"{float(f'{seconds * factor:.3g}'):,.10g} {name}"


def share(part: float, whole: float) -> str:
    """Return a share in percent; never 0% unless it is 0, nor 100% unless it is everything."""
    percent = 100 * part / whole
    if 0 < percent < 1:
        return "under 1%"
    return "over 99%" if 99 < percent < 100 else f"{percent:.0f}%"  # noqa: PLR2004 - percent


def age_labels(ages_seconds: Sequence[int]) -> list[str]:
    """Return labels of age classes, given their lower bounds, the first of which is 0."""
    last = f"{duration(ages_seconds[-1])} and more"
    return [*(_between(begin, end) for begin, end in pairwise(ages_seconds)), last]


def _between(begin: int, end: int) -> str:
    if not begin:
        return f"under {duration(end)}"
    number, unit = duration(begin).split()
    return f"{number if duration(end).endswith(unit) else duration(begin)} to {duration(end)}"


def headline(
    fates: Mapping[str, int], wait_p50_seconds: float | None, value_share: float | None = None
) -> str:
    """Return a sentence about the outcome of tasks, such as "23% done in time, 77% shed".

    Args:
        fates: Number of tasks by fate, from `fates_of`.
        wait_p50_seconds: Median wait of claimed tasks; None if none was claimed.
        value_share: Share of their value that was delivered; None if they have no values.
    """
    total = sum(fates.values())
    if not total:
        return "No tasks."
    first = "done in time"
    parts = [f"{share(fates[first], total)} {first}"]
    parts += [f"{share(count, total)} {fate}" for fate, count in fates.items() if count and fate != first]
    wait = "" if wait_p50_seconds is None else f"; median wait {duration(wait_p50_seconds)}"
    value = "" if value_share is None else f"; {share(value_share, 1)} of the value delivered"
    return f"{', '.join(parts)}{value}{wait}."


def value_share(figures: Mapping[str, float]) -> float | None:
    """Return the delivered share of the value, given the figures of a queue; None if tasks have no values."""
    return figures["value_delivered"] / figures["value_offered"] if "value_offered" in figures else None


# Shares of the tasks from which on an operator should act.
_MUCH_SHED: Final = 0.05
_MANY_FAILED: Final = 0.01


def next_step(figures: Mapping[str, int]) -> str:
    """Return the operator's next step as a sentence, given the figures of a queue in the summary."""
    total = figures["tasks"]
    if figures.get("ledger_violations"):
        return "Next: see the table violations for tasks that are not accounted for."
    if figures["shed"] > _MUCH_SHED * total:
        return "Next: add workers, or offer less; freshq-pipeline replay shows what more capacity completes."
    if figures["failure"] > _MANY_FAILED * total:
        return "Next: find out why tasks fail; the table tasks has them (outcome failure)."
    late = figures["success"] - figures["in_time"]
    if late > _MUCH_SHED * total:
        return "Next: shorten the work or the wait before it, because tasks are done too late."
    return "Next: nothing to do."


def fates_of(figures: Mapping[str, int]) -> dict[str, int]:
    """Return the number of tasks by fate, in plain words, given the figures of a queue in the summary."""
    return {
        "done in time": figures["in_time"],
        "shed": figures["shed"],
        "done late": figures["success"] - figures["in_time"],
        "failed": figures["failure"],
        "cancelled": figures["cancelled"],
        "still waiting": figures["pending"],
        "still running": figures["taken"],
    }


def conclusions(replayed: Mapping[str, Any]) -> list[str]:
    """Return the best and the worst policy of each queue at its recorded capacity, as sentences.

    They are judged by the value that they deliver, if tasks have values, else by the tasks done in time.
    """
    said = []
    for queue in dict.fromkeys(row["queue"] for row in replayed["scenarios"]):
        rows = [row for row in replayed["scenarios"] if row["queue"] == queue and row["capacity"] == 1]
        if len(rows) > 1:
            judged = "value_delivered" if rows[0].get("value_offered") else "served_in_time"
            best, worst = (which(rows, key=lambda row: row[judged]) for which in (max, min))
            said.append((_compared if judged == "served_in_time" else _by_value)(queue, best, worst))
    return said


def replayed_days(replay: Mapping[str, Any]) -> str:
    """Return the days of the tasks in a replay, as a sentence without its full stop."""
    since, until, days, recorded = (replay[name] for name in ("since", "until", "days", "recorded_days"))
    text = f"The tasks were created {f'on {since}' if since == until else f'from {since} to {until}'}"
    if days == recorded:
        return text
    return (
        f"{text}, on {days:,} of {recorded:,} days with tasks; earlier tasks that still waited are included"
    )


def _compared(queue: str | None, best: Mapping[str, Any], worst: Mapping[str, Any]) -> str:
    most, least = (share(row["served_in_time"], row["offered"]) for row in (best, worst))
    begin = f"Queue {queue_name(queue)}, at its recorded capacity:"
    if most == least:
        return f"{begin} all policies complete {most} in time."
    return f"{begin} {best['policy']} completes {most} in time, {worst['policy']} {least}."


def _by_value(queue: str | None, best: Mapping[str, Any], worst: Mapping[str, Any]) -> str:
    begin = f"Queue {queue_name(queue)}, at its recorded capacity:"
    values, tasks = (
        [share(row[part], row[whole]) for row in (best, worst)]
        for part, whole in (("value_delivered", "value_offered"), ("served_in_time", "offered"))
    )
    if values[0] == values[1]:
        return f"{begin} all policies deliver {values[0]} of the value."
    return (
        f"{begin} {best['policy']} delivers {values[0]} of the value and completes {tasks[0]} of the tasks "
        f"in time, {worst['policy']} {values[1]} and {tasks[1]}."
    )


def cell(name: str, value: object) -> str:
    """Return a value of a table as text, formatted by the name of its column."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if not isinstance(value, int | float):
        return str(value)
    if name == _AS_OF:
        return moment(value)
    if name.endswith("_seconds"):
        return duration(value)
    if name.endswith("_share"):
        return share(value, 1)
    return f"{value:,.3f}" if isinstance(value, float) and not value.is_integer() else f"{value:,.0f}"


def heading(name: str) -> str:
    """Return the title of a column: its name without the unit, which `cell` shows."""
    return _TITLES.get(name, name.removesuffix("_seconds").replace("_", " "))


def moment(epoch_ms: float) -> str:
    """Return a time as text, to the second."""
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


MISSING_EVENTS: Final = (
    "All figures lack the events in their unreadable parts. Copy such files again and run again."
)
# A figure that explains at least this share of a difference is the probable reason.
EXPLAINED_SHARE: Final = 0.5


def difference(check: Mapping[str, Any]) -> str:
    """Return the difference between the replay of a queue and the recording, and its probable reason.

    Args:
        check: Check of a replay that is not within its tolerance.
    """
    recorded, replayed = check["served_in_time_recorded"], check["served_in_time_replayed"]
    return (
        f"queue {queue_name(check['queue'])}: the replay of {check['policy']} differs from the recording by "
        f"{check['difference_ratio']:.1%}: {replayed:,} tasks in time, {recorded:,} in the recording. "
        f"{_reason(check, replayed - recorded)}"
    )


def _reason(check: Mapping[str, Any], surplus: int) -> str:
    """Return the probable reason of a difference, or that the figures show none.

    Args:
        check: The check.
        surplus: Number of tasks in time in the replay beyond those in the recording.
    """
    needed = EXPLAINED_SHARE * abs(surplus) / max(1, check["served_in_time_replayed"])
    idle, extra, inverted = (check[f"{name}_ratio"] for name in ("idle", "surplus", "inverted"))
    if surplus > 0 and check["shed_early"] >= EXPLAINED_SHARE * surplus:
        return (
            "Probably because tasks were shed early or on arrival, which no replay does: "
            f"{check['shed_early']:,}. Expect the other scenarios to be equally optimistic"
        )
    if surplus > 0 and idle >= needed:
        return (
            "Probably the machine was starved or workers paused while it was recorded: "
            f"{idle:.0%} of the servers were idle while tasks waited. "
            f"Expect the other scenarios to be equally optimistic{_servers(check)}"
        )
    if surplus < 0 and extra >= needed:
        return (
            f"Probably there were more servers at times: {extra:.0%} more tasks were in progress than on the "
            f"{check['servers']:,} servers of the replay. Expect the other scenarios to be equally "
            f"pessimistic{_servers(check)}"
        )
    if check["policy"] == "lifo" and inverted >= needed:
        return (
            f"Probably tasks were served in another order: {inverted:.0%} of them were claimed while a newer "
            "one waited. Give --recorded-policy"
        )
    return "The figures do not show why. Do not rely on the other scenarios of this queue"


def _servers(check: Mapping[str, Any]) -> str:
    """Suggest the number of servers that fits the recording better, if there is one."""
    mean = check["mean_servers"]
    better = max(1, round(mean))
    suits = better != check["servers"] and abs(better - mean) <= check["tolerance"] * mean
    return f", or give --servers {better}" if suits else ""
