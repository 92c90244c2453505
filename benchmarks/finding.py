"""A figure beside its aim, and how figures are shown: in tables, and those that miss by what bounds them."""

from __future__ import annotations

import operator
import statistics
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

AT_MOST: Final = ("at most", operator.le)
AT_LEAST: Final = ("at least", operator.ge)
# The heading of figures that have nothing in common.
FIGURE: Final = "figure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure beside its aim.

    Attributes:
        what: What it is.
        found: The figure.
        relation: How it is to relate to the aim.
        aim: The aim.
        form: How both are shown.
        bound: What bounds it, if it misses the aim.
        topic: What it has in common with others: the heading of their table.
        spread: How sure it is, as shown behind it.
    """

    what: str
    found: float
    relation: tuple[str, Callable[[float, float], bool]]
    aim: float
    form: str = "{:.2f}"
    bound: str = ""
    topic: str = FIGURE
    spread: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the aim is met, as exactly as it is shown."""
        found, aim = (float(self.form.format(each).replace(",", "")) for each in (self.found, self.aim))
        return self.relation[1](found, aim)

    @property
    def shown(self) -> str:
        """The figure, as it is shown."""
        return self.form.format(self.found)

    @property
    def shown_aim(self) -> str:
        """The aim, as it is shown."""
        return f"{self.relation[0]} {self.form.format(self.aim)}"

    def row(self) -> str:
        """Return it as a row of a table."""
        shown = self.shown if self.is_met else f"**{self.shown}**"
        return f"| {self.what} | {self.shown_aim} | {shown}{self.spread and f' {self.spread}'} |"


def of_rounds(
    what: str,
    rounds: Sequence[float],
    relation: tuple[str, Callable[[float, float], bool]],
    aim: float,
    bound: str,
    topic: str = FIGURE,
) -> Finding:
    """Return the median of rounds as a finding, with the lowest and the highest behind it."""
    spread = f"({min(rounds):.2f} to {max(rounds):.2f})"
    return Finding(what, statistics.median(rounds), relation, aim, bound=bound, topic=topic, spread=spread)


def tables(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a table for each topic, in the order of the findings."""
    for number, (topic, of_topic) in enumerate(groupby(findings, lambda each: each.topic)):
        if number:
            yield ""
        yield f"| {topic} | aim | found |"
        yield "| --- | ---: | ---: |"
        yield from (each.row() for each in of_topic)


def missed(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings that miss their aim: in one item those with one topic, aim and bound."""
    items: dict[tuple[str, str, str], list[Finding]] = {}
    for each in findings:
        if not each.is_met:
            apart = each.what if each.topic == FIGURE else each.topic
            items.setdefault((apart, each.shown_aim, each.bound), []).append(each)
    if not items:
        yield "Every aim above is met."
    for (apart, aim, bound), together in items.items():
        head = f"- {apart[0].upper()}{apart[1:]}"
        if together[0].topic == FIGURE:
            yield f"{head}: {together[0].shown}, where the aim is {aim}. {bound}"
        else:
            figures = "; ".join(f"{each.what} {each.shown}" for each in together)
            yield f"{head}, where the aim is {aim}: {figures}. {bound}"
