"""Advice on the best settings for a recording, and checks of new settings."""

import dataclasses
import functools
import json
import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from freshq.policy.order import Order
from freshq.policy.rules import ReserveRule
from freshq.simulate import Clients, Objective, Recording, Settings, Source, advise, outages, replay
from freshq.simulate import advice as advice_module
from freshq.simulate.advice import (
    Advice,
    Interval,
    Outcome,
    Samples,
    Threshold,
    candidates,
    enough_servers,
    limit_for,
    read_settings,
)
from tests.support.refusals import refused

DEADLINE_SECONDS: Final = 10.0
NOW: Final = Settings(servers=10)


def recording(rate: float, tasks: int = 6000, seed: int = 1, **more: Any) -> Recording:
    """Return a recording of Poisson arrivals with exponential service of 1 s."""
    load = Source(rate, tasks / rate, DEADLINE_SECONDS, seed=seed, **more).load()
    count = len(load)
    return Recording(
        load.created,
        load.service,
        array("d", [DEADLINE_SECONDS]) * count,
        bytearray(load.levels or bytes(count)),
        [None] * count,
        [None] * count,
        array("d", load.values),
        bytearray(count if load.values else 0),
    )


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw five recordings, with Student's t for them; others test the intervals of twenty."""
    monkeypatch.setattr(advice_module, "RESAMPLES", 5)
    monkeypatch.setattr(advice_module, "T_95", 2.776)


quickly: Final = pytest.mark.usefixtures("few_resamples")


@functools.cache
def advised(rate: float, tasks: int) -> Advice:
    """Return the advice on a recording; several tests look at the same."""
    return advise(recording(rate, tasks), NOW, Objective())


# --- settings and objectives


def test_settings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "now.toml"
    file.write_text('order = "fifo"\nreserve = "p50"\nbacklog = "30"\nservers = 4\nmax_age_seconds = 5\n')
    settings = read_settings(file)
    rules = settings.rules(DEADLINE_SECONDS)
    assert (rules.order, rules.deadline_seconds, settings.servers) == (Order.FIFO, 5.0, 4)
    assert rules.reserve == ReserveRule(quantile=0.5)
    assert rules.backlog is not None
    assert rules.backlog.max_waiting == 30
    assert settings.difference(NOW) == {
        "order": "fifo", "max_age_seconds": "5", "reserve": "p50", "backlog": "30,drop-oldest",
        "servers": "4",
    }  # fmt: skip
    # Without a max age of their own, settings follow the recording.
    assert NOW.age_seconds(7.0) == 7.0
    assert NOW.changed(order=Order.FIFO).age_seconds(None) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("order = 'random'", "now.toml: order: "),
        ("colour = 1", "now.toml: colour: unknown; known are order, "),
        ("servers = 0", "now.toml: servers: "),
        ("codel = '1,2'", "now.toml: codel: works only with order=fifo"),
        ("order", "now.toml: not TOML"),
    ],
)
def test_wrong_settings(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "now.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"now\.toml: ") as wrong:
        read_settings(file)
    assert why in str(wrong.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_settings(tmp_path / "no.toml")
    with refused("settings"):
        read_settings({"servers": -1})


def test_objectives() -> None:
    assert Objective.parse("in-time") == Objective()
    assert Objective.parse("0.99@2s for level 9") == Objective("0.99@2s for level 9", 0.99, 2.0, 9)
    assert Objective.parse(".5@0.5s").seconds == 0.5
    for wrong in ("", "fast", "2@1s", "0.9@0s", "0.9@2s for level 10"):
        with refused("objective"):
            Objective.parse(wrong)
    assert Objective("0.9@2s", 0.9, 2.0).enough(0.95) == 0.9


def test_worth_of_a_task() -> None:
    one = Recording(
        array("d", [0.0, 1.0]),
        array("d", [1.0, 1.0]),
        array("d", [4.0, math.inf]),
        bytearray(2),
        [None] * 2,
        [None] * 2,
    )
    done = Samples(recording(5.0, 200), Objective())._simulate(NOW, one)
    assert Objective().worths(one, done) == [1.0, 1.0]
    assert Objective("value").worths(one, done) == [0.75, 1.0]
    assert Objective("0.9@0.5s", 0.9, 0.5).worths(one, done) == [0.0, 0.0]


def test_worth_of_a_task_with_a_value() -> None:
    """Done at 1 s of 4 s: all of a value, or three quarters of a value that falls; shed: nothing."""
    one = Recording(
        array("d", [0.0, 10.0, 20.0]), array("d", [1.0, 1.0, 5.0]), array("d", [4.0] * 3), bytearray(3),
        [None] * 3, [None] * 3, array("d", [8.0, 8.0, 2.0]), bytearray([0, 1, 0]),
    )  # fmt: skip
    samples = Samples(recording(5.0, 200, values={1.0: 1.0}), Objective("value"))
    done = samples._simulate(NOW, one)
    by_value = Objective.of(one)
    assert by_value == Objective("value")
    assert (by_value.worths(one, done), list(by_value.most(one))) == ([8.0, 6.0, 0.0], [8.0, 8.0, 2.0])
    assert (Objective().worths(one, done), list(Objective().most(one))) == ([1.0, 1.0, 0.0], [1.0] * 3)
    assert Objective.of(recording(5.0, 200)) == Objective()


# --- samples


def test_resamples_join_blocks_of_the_recording() -> None:
    samples = Samples(recording(9.0, 30_000), Objective())
    assert len(samples.resamples) == 20
    assert len({tuple(each.at[:5]) for each in samples.resamples}) > 10
    for each in samples.resamples:
        assert list(each.at) == sorted(each.at)
        assert len(each) == pytest.approx(12_000, rel=0.2)
    assert samples.outcome(NOW).worths == samples.outcome(NOW).worths


def test_the_interval_of_a_gain_covers_what_other_recordings_show() -> None:
    """The gain of fifo over lifo close to the capacity, in 20 recordings: most intervals hold their mean."""
    fifo = NOW.changed(order=Order.FIFO)
    gains = []
    for seed in range(1, 21):
        samples = Samples(recording(9.0, 3000, seed), Objective())
        gains.append(samples.gain(samples.outcome(fifo), samples.outcome(NOW)))
    mean = sum(gain.estimate for gain in gains) / len(gains)
    assert mean > 0
    assert sum(gain.low <= mean <= gain.high for gain in gains) >= 15


@quickly
@pytest.mark.matrix
@pytest.mark.parametrize("rate", [9.0, 20.0])
def test_a_gain_is_the_loss_the_other_way_round(rate: float) -> None:
    settings = [NOW, *candidates(NOW, DEADLINE_SECONDS, Objective())[1:5]]
    load = recording(rate, 1000)
    samples = Samples(load, Objective())
    outcomes = list(map(samples.outcome, settings))
    for one in outcomes:
        for other in outcomes:
            gain, loss = samples.gain(one, other), samples.gain(other, one)
            assert (loss.estimate, loss.low, loss.high) == pytest.approx(
                (-gain.estimate, -gain.high, -gain.low)
            )
    threshold = Threshold.parse("in_time<-1%")
    change = replay(load, NOW, settings[2], threshold).change
    swapped = replay(load, settings[2], NOW, threshold).change
    assert (swapped.low, swapped.high) == pytest.approx((-change.high, -change.low))


@quickly
@pytest.mark.matrix
@pytest.mark.parametrize(("rate", "tasks"), [(10.5, 1500), (9.3, 3000), (4.0, 700)])
def test_advice_does_not_contradict_itself(rate: float, tasks: int) -> None:
    advice = advised(rate, tasks)
    for each in advice.compared:
        if not each.change:
            continue
        told_better = each.gain.low > 0
        assert not (told_better and not advice.best.change), (
            "keeps today's settings, though others are better"
        )
        if not advice.best.change:
            assert (each.change in advice.alike) is not each.gain.is_told
    assert not (advice.best.change and {} in advice.alike)


def test_equal_outcomes_have_no_gain() -> None:
    samples = Samples(recording(5.0, 200), Objective())
    outcome = Outcome(NOW, 0.5, [1.0] * 20)
    assert samples.gain(outcome, outcome) == Interval(0.0, 0.0, 0.0)
    assert not samples.gain(outcome, outcome).is_told


def test_a_recording_that_is_too_short() -> None:
    with refused("recording"):
        Samples(recording(1.0, 10), Objective())
    with refused("objective"):
        Samples(recording(1.0, 100), Objective("0.9@2s for level 3", 0.9, 2.0, 3))


# --- advice


@quickly
def test_under_overload_newest_first_is_recommended_over_oldest_first() -> None:
    today = Settings(servers=10, order="fifo", reserve="none")
    advice = advise(recording(20.0, 3000), today, Objective())
    assert advice.best.share > 0.45
    assert advice.today_share < 0.1
    assert advice.best.gain.low > 0.35
    assert advice.compared[0].share >= advice.compared[-1].share
    assert advice.settings.difference(today) == advice.best.change
    assert advice.next_server.low > 0
    assert advice.drawn == 0


def test_near_the_capacity_oldest_first_is_recommended() -> None:
    advice = advise(recording(9.3, 5000), NOW, Objective())
    assert advice.best.change["order"] in {"fifo", "adaptive"}
    assert advice.best.gain.is_told


@quickly
def test_where_nothing_helps_it_says_so() -> None:
    advice = advised(4.0, 700)
    assert advice.best.change == {}
    assert advice.settings == NOW
    assert not advice.best.gain.is_told
    assert {"order": "fifo"} in advice.alike
    assert advice.enough_servers is not None
    assert advice.enough_servers <= 10


@quickly
def test_an_objective_for_one_level() -> None:
    load = recording(12.0, 700, priorities={9: 0.2, 0: 0.8})
    goal = Objective.parse("0.9@3s for level 9")
    advice = advise(load, Settings(servers=10, order="fifo"), goal)
    assert 0.8 < advice.today_share <= 0.9
    assert 3.0 in {each.max_age_seconds for each in candidates(NOW, 10.0, goal)}


def test_servers_are_counted() -> None:
    samples = Samples(recording(20.0, 3000), Objective())
    servers = enough_servers(samples, NOW)
    assert servers is not None
    assert 20 <= servers <= 28
    assert samples.outcome(NOW.changed(servers=servers)).share >= 0.99
    assert samples.outcome(NOW.changed(servers=servers - 1)).share < 0.99
    assert enough_servers(samples, Settings(servers=1)) is None


VALUES: Final = {10.0: 0.2, 4.0: 0.3, 1.0: 0.5}


@quickly
def test_tasks_with_values_are_best_served_by_value() -> None:
    load = recording(30.0, 600, values=VALUES)
    advice = advise(load, NOW, Objective.of(load))
    assert advice.settings.order is Order.VALUE
    assert advice.best.gain.low > 0.1
    assert advice.best.share > 1.5 * advice.today_share
    # Newest first completes about as many tasks, of less value.
    assert advice.today_in_time_share is not None
    assert advice.best.in_time_share == pytest.approx(advice.today_in_time_share, abs=0.05)
    orders = [each.change.get("order") for each in advice.compared]
    assert {"value", "deadline", "fifo", "adaptive"} <= set(orders)
    assert all(each.in_time_share is not None for each in advice.compared)
    plain = advise(recording(30.0, 400), NOW, Objective())
    assert not {"value", "deadline"} & {each.change.get("order") for each in plain.compared}
    assert (plain.today_in_time_share, plain.best.in_time_share) == (None, None)


@quickly
def test_without_deadlines_orders_are_compared_by_time() -> None:
    load = recording(9.0, 1000)
    load = dataclasses.replace(load, ages=array("d", [math.inf]) * len(load))
    advice = advise(load, NOW, Objective.parse("0.9@2s"))
    assert 0 < advice.today_share <= 0.9
    assert all("reserve" not in each.change for each in advice.compared)


def test_outages_tip_oldest_first_over_but_not_newest_first() -> None:
    found = {each.order: each for each in outages(recording(7.0), NOW, Clients(DEADLINE_SECONDS, 3))}
    assert found["fifo without a deadline"].tips_over_seconds is not None
    assert found["fifo without a reserve"].tips_over_seconds is not None
    assert found["lifo"].tips_over_seconds is None
    assert found["lifo"].longest_seconds is not None
    assert found["lifo"].recovery_seconds is not None


# --- replay

REGRESSIONS: Final = (
    (20.0, {"order": "fifo", "reserve": "none"}),
    (9.0, {"backlog": "2"}),
    (12.0, {"servers": 8}),
    (9.0, {"max_age_seconds": 2.0}),
    (9.5, {"order": "fifo", "reserve": "p50", "codel": "0.02,0.05"}),
)


@quickly
@pytest.mark.parametrize(("rate", "changes"), REGRESSIONS)
def test_a_regression_is_caught(rate: float, changes: dict[str, Any]) -> None:
    new = read_settings({"servers": 10, **changes})
    found = replay(recording(rate), NOW, new, Threshold.parse("in_time<-1%"))
    assert found.fails, str(found)
    assert found.change.high < 0


@quickly
@pytest.mark.parametrize("seed", range(1, 6))
def test_no_false_alarm(seed: int) -> None:
    load = recording(9.0, 3000, seed)
    for changes in ({}, {"reserve": "p90"}, {"backlog": "500"}, {"order": "adaptive"}):
        new = read_settings({"servers": 10, **changes})
        assert not replay(load, NOW, new, Threshold.parse("in_time<-1%"), seed).fails


@quickly
def test_a_loss_of_value_is_caught_although_as_many_tasks_are_in_time() -> None:
    load = recording(20.0, 300, values=VALUES)
    by_value = NOW.changed(order=Order.VALUE)
    assert limit_for(load) == "value<-1%"
    found = replay(load, by_value, NOW, Threshold.parse(limit_for(load)))
    assert found.fails, str(found)
    assert "; in time: " in str(found)
    assert not replay(load, NOW, by_value, Threshold.parse("value<-1%")).fails
    assert limit_for(recording(9.0, 200)) == "in_time<-1%"


def test_thresholds() -> None:
    assert Threshold.parse("in_time<-1%") == Threshold("in_time", -0.01)
    assert Threshold.parse("value < -0.5 %") == Threshold("value", -0.005)
    for wrong in ("", "in_time<1%", "in_time>-1%", "waits<-1%", "in_time<-1"):
        with refused("fail_if"):
            Threshold.parse(wrong)


@quickly
def test_the_fixture(freshq_replay: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    load = recording(20.0, 2000)
    rows = zip(load.at, load.service, strict=True)
    lines = [{"at_seconds": at, "service_seconds": own, "deadline_seconds": 10} for at, own in rows]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert freshq_replay(file, {"servers": 10}, {"servers": 11}).change.estimate > 0
    with pytest.raises(pytest.fail.Exception, match="in_time"):
        freshq_replay(file, {"servers": 10}, {"servers": 5})
