"""The alarms as CloudWatch computes them: each goes off by its cause, and not before."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pytest

from tests.template.test_template import source

# Values of a metric by minute: of one minute a sum, of several their list.
Series = Mapping[str, Sequence[float | None]]
STATISTICS: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "Sum": sum,
    "Maximum": max,
    "Minimum": min,
    "Average": lambda values: sum(found := list(values)) / len(found),
    "p99": max,
}
OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "GreaterThanThreshold": lambda value, threshold: value > threshold,
    "GreaterThanOrEqualToThreshold": lambda value, threshold: value >= threshold,
    "LessThanThreshold": lambda value, threshold: value < threshold,
}


# Concurrent executions of an account, as Lambda begins.
LAMBDA_QUOTA: Final = 1000


def alarm(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = source()["Resources"][name]["Properties"]
    return properties


def threshold_of(value: Any) -> float:
    """Return a threshold with the defaults of the parameters."""
    return float(source()["Parameters"][value["Ref"]]["Default"] if isinstance(value, dict) else value)


def points(values: Sequence[float | None], minutes: int, statistic: str, periods: int) -> list[float | None]:
    """Return the last data points of a metric: of each period the statistic, None without a value."""
    found = []
    for period in range(periods, 0, -1):
        end = len(values) - (period - 1) * minutes
        inside = [value for value in values[max(0, end - minutes) : max(0, end)] if value is not None]
        found.append(STATISTICS[statistic](inside) if inside else None)
    return found


def evaluated(expression: str, values: Mapping[str, float | None]) -> float | None:
    """Return the value of a metric math expression: IF(condition, value, 0), or a percentage of a quota."""
    if expression == "100 * claimed / SERVICE_QUOTA(used)":
        return None if values["claimed"] is None else 100 * values["claimed"] / LAMBDA_QUOTA
    parts = re.fullmatch(r"IF\(([^,]+), ([^,]+), 0\)", expression)
    assert parts is not None, expression
    if None in values.values():
        return None
    condition, value = (part.replace(" AND ", " and ").replace(" OR ", " or ") for part in parts.groups())
    return float(eval(f"{value} if {condition} else 0", {}, dict(values)))  # noqa: S307 - of the template


def state(name: str, series: Series) -> bool:
    """Return whether an alarm is in ALARM after what its metrics have been, minute by minute."""
    rules = alarm(name)
    periods = int(rules["EvaluationPeriods"])
    if "Metrics" in rules:
        parts = {part["Id"]: part["MetricStat"] for part in rules["Metrics"] if "MetricStat" in part}
        (expression,) = [part["Expression"] for part in rules["Metrics"] if "Expression" in part]
        columns = {
            key: points(series[part["Metric"]["MetricName"]], part["Period"] // 60, part["Stat"], periods)
            for key, part in parts.items()
        }
        found = [
            evaluated(expression, {key: column[at] for key, column in columns.items()})
            for at in range(periods)
        ]
    else:
        statistic = rules.get("Statistic") or rules["ExtendedStatistic"]
        found = points(series[rules["MetricName"]], rules["Period"] // 60, statistic, periods)
    breaches = OPERATORS[rules["ComparisonOperator"]]
    missing = rules["TreatMissingData"] == "breaching"
    threshold = threshold_of(rules["Threshold"])
    bad = sum(missing if value is None else breaches(value, threshold) for value in found)
    return bool(bad >= int(rules.get("DatapointsToAlarm", periods)))


HOURS: Final = 60


@pytest.mark.parametrize(
    ("name", "calm", "cause"),
    [
        # 95 of 100 runs fail.
        (
            "RunnerFailsFastAlarm",
            {"TasksSucceeded": [10.0], "TasksFailed": [0.0], "TasksRetried": [6.0]},
            {"TasksSucceeded": [0.5], "TasksFailed": [2.0], "TasksRetried": [7.5]},
        ),
        (
            "RunnerFailsSlowlyAlarm",
            {"TasksSucceeded": [8.0], "TasksFailed": [1.0], "TasksRetried": [1.0]},
            {"TasksSucceeded": [6.0], "TasksFailed": [2.0], "TasksRetried": [2.0]},
        ),
        ("FreshnessBurnsFastAlarm", {"ShedRatio": [0.01]}, {"ShedRatio": [0.2]}),
        ("FreshnessBurnsSlowlyAlarm", {"ShedRatio": [0.01]}, {"ShedRatio": [0.07]}),
        ("ValueLostAlarm", {"ValueLostRatio": [0.2, None]}, {"ValueLostRatio": [0.3]}),
        ("IndexThrottlesAlarm", {"WriteThrottleEvents": [None]}, {"WriteThrottleEvents": [3.0]}),
        ("DueIndexThrottlesAlarm", {"WriteThrottleEvents": [None]}, {"WriteThrottleEvents": [3.0]}),
        ("TableWriteThrottlesAlarm", {"WriteThrottleEvents": [None]}, {"WriteThrottleEvents": [3.0]}),
        ("TableReadThrottlesAlarm", {"ReadThrottleEvents": [None]}, {"ReadThrottleEvents": [3.0]}),
        (
            "ArchiveSilenceAlarm",
            {"TasksClaimed": [5.0], "EventsArchived": [15.0]},
            {"TasksClaimed": [5.0], "EventsArchived": [0.0]},
        ),
        (
            "ArchiveDeliveryLateAlarm",
            {"DeliveryToS3.DataFreshness": [310.0]},
            {"DeliveryToS3.DataFreshness": [1900.0]},
        ),
        ("ArchiveDeliveryFailsAlarm", {"DeliveryToS3.Success": [1.0]}, {"DeliveryToS3.Success": [0.5]}),
        ("HttpApiFailsAlarm", {"5xx": [None]}, {"5xx": [1.0]}),
        ("NewProcessTasksFailsAlarm", {"Errors": [0.0]}, {"Errors": [1.0]}),
        (
            "ConcurrencyAlarm",
            {"ClaimedAccountConcurrency": [790.0], "ConcurrentExecutions": [300.0]},
            {"ClaimedAccountConcurrency": [810.0], "ConcurrentExecutions": [300.0]},
        ),
        ("SyntheticTaskAlarm", {"SyntheticTasksDone": [1.0]}, {"SyntheticTasksDone": [None]}),
    ],
)
def test_an_alarm_goes_off_by_its_cause(name: str, calm: Series, cause: Series) -> None:
    assert not state(name, {metric: [*values] * 24 * HOURS for metric, values in calm.items()})
    assert state(name, {metric: [*values] * 24 * HOURS for metric, values in cause.items()})


def test_a_quiet_night_sets_off_no_alarm_of_an_objective() -> None:
    nothing = {"TasksSucceeded": [0.0], "TasksFailed": [0.0], "TasksRetried": [0.0], "ShedRatio": [0.0]}
    nothing |= {"TasksClaimed": [0.0], "EventsArchived": [0.0]}
    night = {metric: values * 12 * HOURS for metric, values in nothing.items()}
    for name in (
        "RunnerFailsFastAlarm",
        "RunnerFailsSlowlyAlarm",
        "FreshnessBurnsFastAlarm",
        "FreshnessBurnsSlowlyAlarm",
        "ArchiveSilenceAlarm",
    ):
        assert not state(name, night), name


def test_one_failed_run_of_a_small_queue_is_no_outage() -> None:
    one = {"TasksSucceeded": [0.0] * 60, "TasksFailed": [0.0] * 59 + [1.0], "TasksRetried": [0.0] * 60}
    assert not state("RunnerFailsFastAlarm", one)


def test_a_fast_burn_is_seen_within_an_hour_and_a_slow_one_within_six() -> None:
    before = [0.0] * 24 * HOURS
    assert not state("FreshnessBurnsFastAlarm", {"ShedRatio": before + [1.0] * 5})
    assert state("FreshnessBurnsFastAlarm", {"ShedRatio": before + [1.0] * 10})
    assert not state("FreshnessBurnsSlowlyAlarm", {"ShedRatio": before + [0.1] * 3 * HOURS})
    assert state("FreshnessBurnsSlowlyAlarm", {"ShedRatio": before + [0.1] * 4 * HOURS})


def test_the_burn_rates_are_those_of_the_workbook() -> None:
    for speed, rate in (("Fast", 14.4), ("Slowly", 6)):
        assert alarm(f"FreshnessBurns{speed}Alarm")["Threshold"] == pytest.approx(rate * (1 - 0.99))
        assert alarm(f"RunnerFails{speed}Alarm")["Threshold"] == pytest.approx(rate * (1 - 0.95))
