"""A match is the resource that a scan of all resources would choose.

The model scans all resources for every caller; the queue reads a page of a few partitions.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshq import MatchQueue
from freshq.matching import ResourceStatus, line
from freshq.matching.match import Walk
from freshq.matching.places import entries_of, fits, parse_attributes, places_of
from freshq.matching.resource import parse_criteria
from freshq.matching.stores.memory import MemoryMatchStore
from tests.conftest import Clock

NAMES: Final = ("gender", "language", "z")
VALUES: Final = ("a", "ab", "#")
VALUE = st.sampled_from(VALUES)
VALUE_SET = st.frozensets(VALUE, min_size=1, max_size=2)
ATTRIBUTES = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUE_SET))
PREFERENCES = st.lists(VALUE | VALUE_SET | st.none(), min_size=1, max_size=3)
CRITERIA = st.dictionaries(st.sampled_from(NAMES), VALUE | VALUE_SET | PREFERENCES, min_size=1, max_size=2)
JOIN = st.tuples(st.just("join"), ATTRIBUTES)
MATCH = st.tuples(st.just("match"), CRITERIA | st.just({}))
STEP = (
    JOIN | MATCH | MATCH | st.tuples(st.sampled_from(["withdraw", "complete", "release"]), st.integers(0, 20))
)
# First some resources: an order matters only if several of them fit the same criteria.
STEPS = st.tuples(
    st.lists(JOIN, min_size=3, max_size=9), st.lists(MATCH | STEP, min_size=3, max_size=20)
).map(lambda parts: parts[0] + parts[1])


@dataclass
class Model:
    """The waiting resources, in the order in which they were queued."""

    line: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def choose(self, criteria: Any, *, newest_first: bool) -> str | None:
        line = self.line[::-1] if newest_first else self.line
        for asks in parse_criteria(criteria):
            for name, attributes in line:
                if any(fits(ask, parse_attributes(attributes)) for ask in asks):
                    return name
        return None

    def remove(self, name: str) -> None:
        self.line = [entry for entry in self.line if entry[0] != name]


@given(steps=STEPS, newest_first=st.booleans(), page_entries=st.integers(1, 4))
@settings(max_examples=3 * settings().max_examples)
def test_a_match_is_the_resource_that_a_full_scan_would_choose(
    *, steps: list[tuple[str, Any]], newest_first: bool, page_entries: int
) -> None:
    store, clock, model = MemoryMatchStore(), Clock(), Model()
    queue = MatchQueue(store, "lifo" if newest_first else "fifo", clock=clock)
    queue._matches._walk = Walk(store, newest_first=newest_first, page_entries=page_entries)
    held = []
    for number, (verb, given_with) in enumerate(steps):
        if verb == "join":
            queue.register(f"{number}", attributes=given_with)
            queue.offer(f"{number}")
            model.line.append((f"{number}", given_with))
        elif verb == "match":
            matches = queue.match(given_with)
            chosen = model.choose(given_with, newest_first=newest_first)
            assert [match.resource_id for match in matches] == ([] if chosen is None else [chosen])
            held += matches
            for match in matches:
                model.remove(match.resource_id)
        elif verb == "withdraw" and model.line:
            name = model.line[given_with % len(model.line)][0]
            queue.withdraw(name)
            model.remove(name)
        elif verb == "complete" and held:
            queue.complete(held.pop(given_with % len(held)))
        elif verb == "release" and held:
            name = queue.release(held.pop(given_with % len(held))).resource_id
            model.line = sorted([*model.line, (name, steps[int(name)][1])], key=lambda each: int(each[0]))
        assert queue.waiting() == len(model.line)
    waiting = {
        resource.resource_id for resource in store.resources() if resource.status is ResourceStatus.QUEUED
    }
    assert waiting == {name for name, _attributes in model.line}
    assert len(store._entries) == sum(
        entries_of(parse_attributes(attributes)) for _name, attributes in model.line
    )


@given(ATTRIBUTES)
def test_places_are_unique_and_as_many_as_counted(
    attributes: dict[str, frozenset[str]],
) -> None:
    parsed = parse_attributes(attributes)
    places = places_of(parsed)
    assert len(set(places)) == len(places) == entries_of(parsed)


@given(
    asked=st.lists(CRITERIA | st.just({}), max_size=12),
    offered=st.lists(ATTRIBUTES, min_size=1, max_size=8),
    read=st.integers(0, 3),
)
@settings(max_examples=3 * settings().max_examples)
def test_a_resource_goes_to_the_caller_whom_a_full_scan_would_choose(
    asked: list[Any], offered: list[dict[str, Any]], read: int
) -> None:
    queue = MatchQueue(MemoryMatchStore(), clock=Clock())
    waiting: list[tuple[str, list[Any]]] = []
    for number, criteria in enumerate(asked):
        assert queue.request(criteria, caller_id=f"c{number}") is None
        waiting.append((f"c{number}", [ask for asks in parse_criteria(criteria) for ask in asks]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "CALLERS_A_QUESTION", read)
        patch.setattr(line, "PAGE_KEYS", 1 + read)
        for number, attributes in enumerate(offered):
            parsed = parse_attributes(attributes)
            fitting = [name for name, asks in waiting if any(fits(ask, parsed) for ask in asks)]
            queue.register(f"r{number}", attributes=attributes)
            assert queue.offer(f"r{number}").caller_id == (fitting[0] if fitting else None)
            waiting = [entry for entry in waiting if entry[0] not in fitting[:1]]
    assert [caller.caller_id for caller in queue.callers()] == [name for name, _asks in waiting]
