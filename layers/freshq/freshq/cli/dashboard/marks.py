"""The picture's data: a mark for each waiting task, or for every n-th."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# More could neither be distinguished nor drawn smoothly.
MAX_MARKS: Final = 600
# Creation times read of each line for a snapshot.
READ_TASKS: Final = 5_000
# Ages in the picture's alternative as text, as shares of the max age.
AGE_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 1.0)
# Knuth's multiplicative hash, of 32 bits (The Art of Computer Programming, volume 3, section 6.4).
HASH_FACTOR: Final = 2_654_435_761
HASH_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Marks:
    """The waiting tasks as the picture shows them.

    Attributes:
        ages_ms: The age of each mark in whole milliseconds before those of the time of the snapshot, the
            youngest first.
        one_in: How many tasks a mark stands for.
        older: Waiting tasks that are older than all those read; at least, if the backlog is not counted.
        by_age: Pairs of an age in seconds and the number of the tasks read that are younger.
    """

    ages_ms: tuple[int, ...]
    one_in: int
    older: int
    by_age: tuple[tuple[float, int], ...]


def marks_of(
    created: Mapping[str | None, Sequence[float]], pending: int, now: float, horizon_seconds: float
) -> Marks:
    """Return the marks of the waiting tasks.

    Which tasks have a mark depends on their creation times alone, so that the same ones have one in every
    snapshot; and the number of tasks that a mark stands for is a power of two, so that it seldom changes.

    Args:
        created: Creation times by group, in seconds since the epoch.
        pending: How many tasks wait, as far as they are counted.
        now: Current time in seconds since the epoch.
        horizon_seconds: The greatest age that the picture has.
    """
    times = sorted(chain.from_iterable(created.values()), reverse=True)
    one_in = 1
    while len(times) > MAX_MARKS * one_in:
        one_in *= 2
    # Each rounded by itself: the creation time that the page computes is then the same in every snapshot.
    ages_ms = tuple(round(now * 1000) - round(time * 1000) for time in times if _hash(time) % one_in == 0)
    ages_seconds = [horizon_seconds * share for share in AGE_SHARES]
    by_age = tuple((age, sum(now - time < age for time in times)) for age in ages_seconds)
    return Marks(ages_ms, one_in, max(0, pending - len(times)), by_age)


def _hash(created: float) -> int:
    """Return a number that looks random, from the highest bits of the hash."""
    return (round(created * 1e6) * HASH_FACTOR % (1 << HASH_BITS)) >> (HASH_BITS // 2)
