"""The brake of a shared rate."""

from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.groups import MAX_RULES, GroupRule, GroupRules
from freshq.policy.limits import LOWEST_PART, Brake, TokenBucket

TIMES = st.floats(0, 1e6)


def lowered(brake: Brake, now: float, retry_after_seconds: float) -> Brake:
    return brake.lowered(now, retry_after_seconds) or brake


def test_seven_tenths_down_once_a_second_and_a_hundredth_a_second_up() -> None:
    brake = lowered(Brake(), 100, 10)
    assert brake == Brake(0.7, 100, 110)
    assert brake.lowered(100.9, 5) is None
    assert brake.lowered(100.9, 20) == Brake(0.7, 100, 120.9)
    assert lowered(brake, 101, 5) == Brake(0.7 * 0.7, 101, 110)
    assert [round(brake.part_at(now), 6) for now in (100, 110, 120, 139, 200)] == [0.7, 0.7, 0.8, 0.99, 1.0]


@given(st.lists(st.tuples(TIMES, st.floats(0, 1e5)), max_size=50), TIMES)
def test_it_stays_between_its_floor_and_the_whole_rate(seen: list[tuple[float, float]], now: float) -> None:
    brake = Brake()
    for at, retry_after_seconds in sorted(seen):
        before, brake = brake.part_at(at), lowered(brake, at, retry_after_seconds)
        assert LOWEST_PART <= brake.part_at(at) <= before <= 1
    assert LOWEST_PART <= brake.part_at(now) <= 1
    last = max((at + seconds for at, seconds in seen), default=0.0)
    assert brake.part_at(last + 96) == 1


def test_a_bucket_fills_by_a_part_of_its_rate() -> None:
    bucket = TokenBucket(10, 5, 0.0)
    bucket.take(bucket.available(0.0))
    assert (bucket.available(0.5, 0.4), bucket.available(0.5, 0.4)) == (2, 2)
    bucket.take(2)
    assert bucket.seconds_until_next() == 1 / 4


def test_the_nearest_rate_above_a_group_applies_to_it() -> None:
    rules = GroupRules(
        GroupRule(max_running=3),
        {"a": GroupRule(rate_per_second=4), "a/b/c": GroupRule(rate_per_second=2)},
        "/",
    )
    of = {group: rules.rated(group) for group in (None, "a", "a/b", "a/b/c", "a/b/c/d", "x")}
    assert of == {None: None, "a": "a", "a/b": "a", "a/b/c": "a/b/c", "a/b/c/d": "a/b/c", "x": None}
    assert GroupRules().rated("a") is None


def test_slowed_rules_differ_in_the_rates_of_slowed_groups_only() -> None:
    rules = GroupRules(GroupRule(rate_per_second=10, weight=2), {"a": GroupRule(max_running=3)})
    assert rules.slowed({"": 0.5, "a": 0.5}).rule("a").rate_per_second is None
    slowed = rules.slowed({"b": 0.5})
    assert (slowed.rule("b"), slowed.rule("c")) == (GroupRule(2, None, 5.0), rules.default)
    full = GroupRules(
        rules.default, {f"g{number}": GroupRule(rate_per_second=4) for number in range(MAX_RULES)}
    )
    slowed = full.slowed({"new": 0.5, "g7": 0.5})
    assert (slowed.rule("g7").rate_per_second, slowed.rule("new").rate_per_second) == (2, 10)
