"""The order in which contenders take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def rotated(contenders: Sequence[T], number: int) -> list[T]:
    """Return the contenders in the order of a round: each round begins with another one.

    What runs first finds a colder machine; so each has each place as often as the others.

    Args:
        contenders: All, in any order.
        number: Number of the round, from 0.
    """
    first = number % len(contenders)
    return [*contenders[first:], *contenders[:first]]
