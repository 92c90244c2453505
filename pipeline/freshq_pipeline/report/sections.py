"""The sections of the page: a heading, a sentence, and charts or a table."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from freshq_pipeline.report.words import cell, heading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Shown even if it is 0 in every row.
ALWAYS: Final = ("difference", "difference_share", "created", "tasks", "count")
# Tables with more rows scroll.
TALL_ROWS: Final = 25


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, and charts or a table.

    Attributes:
        title: The heading.
        text: The sentence.
        charts: Charts as Vega-Lite, in rows, by the name of their queue.
        table: A table; columns of nothing but zeros are named below it.
        notes: What to know about them, below.
    """

    title: str
    text: str
    charts: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    notes: str = ""


class Page:
    """Sections as HTML, and the charts that a script draws into them."""

    def __init__(self, *, names_queues: bool) -> None:
        """Begin without sections.

        Args:
            names_queues: Whether each chart has the name of its queue, because there are several.
        """
        self._names_queues = names_queues
        self.charts: dict[str, dict[str, Any]] = {}

    def section(self, section: Section) -> str:
        """Return a section as HTML, and keep its charts."""
        parts = [f"<section><h2>{html.escape(section.title)}</h2>"]
        if section.text:
            parts.append(f"<p class='muted'>{html.escape(section.text)}</p>")
        for queue, drawn in section.charts.items():
            named = f"<h3>Queue {html.escape(queue)}</h3>" if self._names_queues else ""
            parts.append(f"{named}<div class='row'>{''.join(map(self._place, drawn))}</div>")
        if section.table is not None:
            parts.append(table(section.table))
        if section.notes:
            parts.append(f"<p class='muted'>{html.escape(section.notes)}</p>")
        return "".join([*parts, "</section>"])

    def _place(self, drawn: dict[str, Any]) -> str:
        name = f"chart{len(self.charts)}"
        self.charts[name] = drawn
        return f"<div class='chart' id='{name}'></div>"


def table(rows: pd.DataFrame) -> str:
    """Return rows as HTML, with units, and without the columns that are 0 in all of them."""
    zeros = [str(name) for name in rows if name not in ALWAYS and _is_zero(rows[name])]
    shown = rows.drop(columns=zeros)
    tags = {name: "" if pd.api.types.is_numeric_dtype(shown[name]) else " class='text'" for name in shown}
    head = "".join(f"<th{tags[name]}>{html.escape(heading(str(name)))}</th>" for name in shown)
    body = "".join(f"<tr>{_cells(row, tags)}</tr>" for row in shown.astype(object).to_dict("records"))
    listed = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    size = "scroll tall" if len(shown) > TALL_ROWS else "scroll"
    return f"<div class='{size}'>{listed}</div>{_all_zero(map(heading, zeros))}"


def _cells(row: Mapping[Any, Any], tags: Mapping[Any, str]) -> str:
    return "".join(
        f"<td{tags[name]}>{html.escape(cell(str(name), value))}</td>" for name, value in row.items()
    )


def _is_zero(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and len(column) > 0 and bool((column == 0).all())


def _all_zero(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"<p class='muted'>Zero: {html.escape(listed)}.</p>" if listed else ""


def figures(values: Mapping[str, Any]) -> str:
    """Return figures as boxes; those that are 0 as one line below."""
    boxes = [
        f"<div><b>{html.escape(cell(name, value))}</b>{html.escape(heading(name))}</div>"
        for name, value in values.items()
        if value != 0
    ]
    zeros = [heading(name) for name, value in values.items() if value == 0]
    return f"<div class='figures'>{''.join(boxes)}</div>{_all_zero(zeros)}"
