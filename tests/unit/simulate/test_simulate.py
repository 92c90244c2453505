"""The simulator: compared with a slow twin; its accounts, loads and measures."""

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.order import Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.policy.shedding import ShedReason
from freshq.simulate import (
    ArrivalProcess,
    Burst,
    Load,
    ServiceDistribution,
    Simulation,
    Source,
    read_recording,
    simulate_load,
    summarize,
)
from tests.support.naive_simulator import SlowQueue
from tests.support.refusals import refused

DEADLINE_SECONDS = 10.0

times = st.integers(0, 200).map(lambda tenths: tenths / 10)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Draw a small load, with ties in time, individual deadlines, levels and groups."""
    count = draw(st.integers(1, 40))

    def each(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    created = sorted(each(times))
    ages = each(st.sampled_from([2.0, 5.0, DEADLINE_SECONDS]))
    return Load(
        created=array("d", created),
        service=array("d", each(st.sampled_from([0.3, 1.0, 2.7]))),
        deadline=array("d", [start + age for start, age in zip(created, ages, strict=True)]),
        duration_seconds=20.0,
        levels=draw(st.just(b"") | st.just(bytes(each(st.integers(0, 2))))),
        groups=each(st.sampled_from(["a", "b", "c"])),
    )


def started(done: Simulation) -> dict[int, float]:
    """Return when each task that was served started."""
    return {task: start for task, start in enumerate(done.starts) if done.fates[task] in (1, 2)}


# --- against the slow twin


@given(
    loads(),
    st.sampled_from([Order.LIFO, Order.FIFO]),
    st.integers(1, 3),
    st.sampled_from([0, 1.5]),
)
@settings(max_examples=2 * settings().max_examples)
def test_it_serves_what_a_plain_reading_of_the_policy_serves(
    load: Load, order: Order, servers: int, reserve: float
) -> None:
    def pick(now: float, live: Sequence[int]) -> int | None:
        fit = [task for task in live if load.deadline[task] > now + reserve]
        top = max((load.levels[task] if load.levels else 0 for task in fit), default=None)
        level = [task for task in fit if (load.levels[task] if load.levels else 0) == top]
        return (level[-1] if order.newest_first else level[0]) if level else None

    done = simulate_load(load, OverloadRules(DEADLINE_SECONDS, order, ReserveRule(reserve)), servers)
    assert started(done) == SlowQueue(load, pick, [0.0] * servers).run()


# --- accounts

rules = st.one_of(
    st.builds(
        OverloadRules,
        st.just(DEADLINE_SECONDS),
        st.sampled_from(Order),
        st.sampled_from([ReserveRule(), ReserveRule(1.5), ReserveRule(quantile=0.9)]),
        backlog=st.none() | st.builds(BacklogLimit, st.integers(1, 5), st.sampled_from(WhenFull)),
        fair=st.booleans(),
        admission=st.none() | st.just(AdmissionLimit(1.0)),
    ),
    st.builds(
        OverloadRules,
        st.just(DEADLINE_SECONDS),
        st.just(Order.FIFO),
        codel=st.just(CodelRule(0.5, 1.0)),
        backlog=st.none() | st.builds(BacklogLimit, st.integers(2, 5), group_share=st.just(0.5)),
        fair=st.sampled_from([True]),
    ),
)


@given(loads(), rules, st.integers(1, 3))
@settings(max_examples=3 * settings().max_examples)
def test_every_task_has_one_fate_and_no_rule_is_broken(
    load: Load, policy: OverloadRules, servers: int
) -> None:
    done = simulate_load(load, policy, servers)
    result = summarize(done)
    assert 0 not in done.fates
    shed = sum(result.shed_by_reason.values())
    assert result.offered == len(load) == result.served_in_time + result.served_late + shed
    starts = started(done)
    for task, start in starts.items():
        assert load.created[task] <= start < load.deadline[task]
        in_work = sum(other <= start < other + load.service[one] for one, other in starts.items())
        assert in_work <= servers
        in_time = start + load.service[task] <= load.deadline[task]
        assert done.fates[task] == (1 if in_time else 2)


@given(loads(), st.sampled_from(WhenFull))
def test_a_backlog_is_never_longer_than_allowed(load: Load, when_full: WhenFull) -> None:
    # With services longer than the load, tasks served later waited at its end.
    endless = Load(load.created, array("d", [1e6] * len(load)), array("d", [1e9] * len(load)), 20.0)
    limit = BacklogLimit(3, when_full)
    result = summarize(simulate_load(endless, OverloadRules(1e8, Order.FIFO, backlog=limit), 1))
    assert result.offered - result.shed_by_reason[ShedReason.OVERFLOW] <= 4


def test_no_server() -> None:
    load = Source(1.0, 10.0, DEADLINE_SECONDS).load()
    for servers in (0, 10**9):
        with refused("servers"):
            simulate_load(load, OverloadRules(DEADLINE_SECONDS), servers)


# --- loads


def test_the_same_seed_gives_the_same_load_and_run() -> None:
    source = Source(20.0, 100.0, DEADLINE_SECONDS, groups={"a": 1, "b": 3}, priorities={0: 9, 9: 1})
    assert source.load() == source.load()
    again = [
        summarize(simulate_load(source.load(), OverloadRules(10.0, admission=AdmissionLimit()), 5, seed=3))
        for _ in range(2)
    ]
    assert again[0] == again[1]


def test_arrivals_do_not_depend_on_the_service_times() -> None:
    exp, det = (
        Source(20.0, 50.0, DEADLINE_SECONDS, service=kind).load()
        for kind in (ServiceDistribution.EXP, ServiceDistribution.DET)
    )
    assert exp.created == det.created


@pytest.mark.parametrize(
    ("kind", "variation"),
    [(ServiceDistribution.EXP, 1.0), (ServiceDistribution.DET, 0.0), (ServiceDistribution.LOGNORMAL, 1.72)],
)
def test_service_times_have_their_mean_and_variation(kind: ServiceDistribution, variation: float) -> None:
    times = Source(100.0, 1000.0, DEADLINE_SECONDS, service=kind, service_mean_seconds=0.5).load().service
    mean = sum(times) / len(times)
    assert mean == pytest.approx(0.5, rel=0.03)
    assert sum((time - mean) ** 2 for time in times) / len(times) / mean**2 == pytest.approx(
        variation, rel=0.2
    )


@pytest.mark.parametrize("arrivals", list(ArrivalProcess))
def test_a_burst_multiplies_the_rate_while_it_lasts(arrivals: ArrivalProcess) -> None:
    source = Source(100.0, 100.0, DEADLINE_SECONDS, arrivals, burst=Burst.parse("10@40+20"))
    counts = [0, 0, 0]
    for created in source.load().created:
        counts[0 if created < 40 else 1 if created < 60 else 2] += 1
    assert counts == [pytest.approx(expected, rel=0.1) for expected in (4000, 20_000, 4000)]


def test_deterministic_arrivals_are_even() -> None:
    load = Source(4.0, 2.0, DEADLINE_SECONDS, ArrivalProcess.DETERMINISTIC).load()
    assert list(load.created) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


def test_groups_and_priorities_have_their_shares() -> None:
    load = Source(100.0, 100.0, 10.0, groups={"a": 1, "b": 3}, priorities={2: 1, 7: 1}).load()
    assert list(load.groups).count("b") / len(load) == pytest.approx(0.75, abs=0.02)
    assert set(load.levels) == {2, 7}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rate_per_second": 0.0}, "rate_per_second"),
        ({"rate_per_second": float("nan")}, "rate_per_second"),
        ({"duration_seconds": -1.0}, "duration_seconds"),
        ({"duration_seconds": 1e9}, "duration_seconds"),
        ({"deadline_seconds": 0.0}, "deadline_seconds"),
        ({"service_mean_seconds": float("inf")}, "service_mean_seconds"),
        ({"groups": {"a": 0.0}}, "groups.a"),
        ({"burst": Burst(2.0, 50.0, 50.0)}, "burst"),
    ],
)
def test_a_senseless_source(changes: dict[str, Any], name: str) -> None:
    sound = {"rate_per_second": 1.0, "duration_seconds": 100.0, "deadline_seconds": 10.0}
    with refused(name):
        Source(**{**sound, **changes})


@pytest.mark.parametrize("text", ["", "10", "10@5", "1@5+5", "10@-1+5", "10@5+0", "x@5+5", "nan@5+5"])
def test_a_senseless_burst(text: str) -> None:
    with refused("burst"):
        Burst.parse(text)


# --- recorded arrivals


def write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines), "utf-8")
    return file


def test_a_file_says_when_what_arrives(tmp_path: Path) -> None:
    file = write(
        tmp_path / "load.jsonl",
        json.dumps({"at_seconds": 1007.5, "service_seconds": 2.0, "deadline_seconds": 5.0, "level": 3}),
        "",
        json.dumps({"at_seconds": 1000.0, "deadline_seconds": 99.0, "group": "a"}),
        json.dumps({"at_seconds": 1020, "group": "b"}),
    )
    load = read_recording(file).trace(DEADLINE_SECONDS)
    assert list(load.created) == [0.0, 7.5, 20.0]
    assert list(load.service) == [2.0, 2.0, 2.0], "drawn from the times that are known"
    assert list(load.deadline) == [10.0, 12.5, 30.0]
    assert list(load.levels) == [0, 3, 0]
    assert load.groups == ["a", None, "b"]
    assert load.duration_seconds == pytest.approx(20.0)
    assert len(read_recording(file).trace(DEADLINE_SECONDS, duration_seconds=20.0)) == 2
    assert summarize(simulate_load(load, OverloadRules(DEADLINE_SECONDS, fair=True), 1)).by_group.keys() == {
        "",
        "a",
        "b",
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "invalid JSON"),
        ("[]", "object"),
        ("{}", "at_seconds: field required"),
        ('{"at_seconds": "1"}', "at_seconds: "),
        ('{"at_seconds": NaN}', "at_seconds: "),
        ('{"at_seconds": 1, "service_seconds": 0}', "service_seconds: "),
        ('{"at_seconds": 1, "deadline_seconds": -1}', "deadline_seconds: "),
        ('{"at_seconds": 1, "level": 10}', "level: "),
        ('{"at_seconds": 1, "rate": 2}', "rate: unknown field; known are at_seconds, "),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = write(tmp_path / "load.jsonl", '{"at_seconds": 0}', "", line)
    with pytest.raises(ValueError, match=r"load\.jsonl, line 3: .*") as broken:
        read_recording(file)
    assert why in str(broken.value)
    assert "\n" not in str(broken.value)


def test_a_file_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no\.jsonl: cannot be read"):
        read_recording(tmp_path / "no.jsonl")
    with pytest.raises(ValueError, match="no arrivals"):
        read_recording(write(tmp_path / "empty.jsonl", ""))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_recording(tmp_path / "binary.jsonl")


# --- measures


def test_the_measures_of_a_run_done_by_hand() -> None:
    """One server, 4 s a task, deadline 5 s: the first in time, the second started at 4 is late."""
    created = array("d", [0.0, 1.0, 2.0])
    load = Load(created, array("d", [4.0] * 3), array("d", [start + 5 for start in created]), 8.0)
    result = summarize(simulate_load(load, OverloadRules(5.0, Order.FIFO), 1))
    assert (result.served_in_time, result.served_late) == (1, 1)
    assert result.shed_by_reason[ShedReason.EXPIRED] == 1
    assert result.shed_ratio == pytest.approx(1 / 3)
    assert result.goodput_ratio == pytest.approx(0.5)
    assert result.load == pytest.approx(1.5)
    assert result.wasted_ratio == pytest.approx(0.5)
    assert (result.wait_p50_seconds, result.wait_p99_seconds) == (0.0, 0.0)
    assert result.recovery_seconds is None


def test_recovery_is_counted_from_the_end_of_the_burst() -> None:
    burst = Burst(2.0, 100.0, 50.0)
    created = array("d", [float(second) for second in range(400)])
    load = Load(created, array("d", [1.0] * 400), array("d", [start + 5 for start in created]), 400.0)
    done = Simulation(load, 1, bytearray([1] * 100 + [3] * 80 + [1] * 220), array("d", created))
    # The first 50 in a row of which 45 did well begin with the last 5 that did not.
    assert summarize(done, burst).recovery_seconds == 180 - 5 - 150
    never = Simulation(load, 1, bytearray([1] * 100 + [3] * 300), array("d", created))
    assert summarize(never, burst).recovery_seconds is None
