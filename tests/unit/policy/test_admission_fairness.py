"""A flood of one group at the admission limit of a real queue, under a virtual clock."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from freshq import Overloaded, Queue
from freshq.policy.pressure import AdmissionLimit, group_counts

DEADLINE_SECONDS: Final = 10.0
SERVED_PER_SECOND: Final = 20
SECONDS: Final = 12
FLOOD_PER_SECOND, QUIET_PER_SECOND = 200, 5


@dataclass
class Served:
    """What became of the tasks of each group."""

    offered: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)


def serve(rates_per_second: dict[str, int], admission: AdmissionLimit | None) -> Served:
    """Put tasks of each group evenly, complete `SERVED_PER_SECOND`; return what became of them."""
    now = 1_000_000.0
    queue = Queue.memory(
        max_age_seconds=DEADLINE_SECONDS,
        admission=admission,
        clock=lambda: now,
        rng=Random(7),
        lease_seconds=3600,
    )
    served = Served()
    puts = [
        (number / rate, group) for group, rate in rates_per_second.items() for number in range(rate * SECONDS)
    ]
    claims = [(number / SERVED_PER_SECOND, "") for number in range(SERVED_PER_SECOND * SECONDS)]
    for at, group in sorted(puts + claims):
        now = 1_000_000.0 + at
        if group:
            served.offered[group] += 1
            try:
                queue.put(None, group=group)
            except Overloaded:
                served.rejected[group] += 1
        else:
            for claim in queue.claim():
                served.done[str(queue.complete(claim).group)] += 1
    return served


def test_a_flood_is_rejected_by_the_limit_and_a_quiet_group_is_not() -> None:
    rates = {"flood": FLOOD_PER_SECOND, "quiet": QUIET_PER_SECOND}
    behind_admission, open_to_all = serve(rates, AdmissionLimit(2.0)), serve(rates, None)
    assert behind_admission.rejected["quiet"] <= 3
    assert behind_admission.done["quiet"] >= 0.95 * behind_admission.offered["quiet"]
    # Once the overload was seen, the flood gets what the quiet group leaves of twice the capacity.
    assert behind_admission.rejected["flood"] > 0.4 * behind_admission.offered["flood"]
    assert behind_admission.done.total() >= 0.99 * open_to_all.done.total()


def test_groups_that_offer_the_same_are_rejected_alike() -> None:
    served = serve(dict.fromkeys(("a", "c", "d", "e"), 20), AdmissionLimit(1.0))
    rejected = [served.rejected[group] / served.offered[group] for group in sorted(served.offered)]
    assert max(rejected) - min(rejected) < 0.1
    assert min(rejected) > 0.2


def test_the_number_of_counts_does_not_grow_with_the_groups() -> None:
    names = {name for number in range(10_000) for name in group_counts(f"group-{number}")}
    assert len(names) == 128
    assert all(name.isidentifier() for name in names)


@pytest.mark.parametrize("group", [None, "", "ä", "x" * 1000])
def test_every_group_has_two_counts(group: str | None) -> None:
    assert len(set(group_counts(group))) == 2
