"""The sections of the page as HTML: a heading, a sentence, and charts or a table."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.errors import BadInput
from freshq_pipeline.report import charts
from freshq_pipeline.report.tables import Sums
from freshq_pipeline.report.words import (
    NO_NAME,
    cell,
    conclusions,
    difference,
    heading,
    moment,
    queue_name,
    replayed_days,
)
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.results import last_replay
from freshq_pipeline.storage.state import required_current

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from freshq_pipeline.report.tables import Tables
    from freshq_pipeline.storage.folder import Folder


# Columns that are shown even if all values are 0.
ALWAYS: Final = ("difference", "difference_share", "created", "tasks", "count")
# Tables with more rows scroll.
TALL_ROWS: Final = 25


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page.

    Attributes:
        title: The heading.
        text: The sentence.
        charts: Charts as Vega-Lite, in rows, by queue.
        table: A table; columns of zeros are listed below it.
        notes: Explanations, below charts and table.
        events: Events of tasks in the table, by task id, below it; the ids are links to them.
    """

    title: str
    text: str
    charts: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    notes: str = ""
    events: Mapping[str, pd.DataFrame] = field(default_factory=dict)


class PageDrawing:
    """Renders sections as HTML, and collects the charts that a script draws into them."""

    def __init__(self, *, names_queues: bool) -> None:
        """Start without sections.

        Args:
            names_queues: Whether charts are titled with their queue, because there are several.
        """
        self._names_queues = names_queues
        self.charts: dict[str, dict[str, Any]] = {}

    def section(self, section: Section) -> str:
        """Return a section as HTML; keep its charts."""
        parts = [f"<section><h2>{html.escape(section.title)}</h2>"]
        if section.text:
            parts.append(f"<p class='muted'>{html.escape(section.text)}</p>")
        for queue, drawn in section.charts.items():
            named = f"<h3>Queue {html.escape(queue)}</h3>" if self._names_queues else ""
            parts.append(f"{named}<div class='row'>{''.join(map(self._place, drawn))}</div>")
        if section.table is not None:
            places = {task: f"events{number}" for number, task in enumerate(section.events)}
            parts.append(table(section.table, places))
            for task, events in section.events.items():
                parts.append(f"<h3 id='{places[task]}'>Events of {html.escape(task)}</h3>{table(events)}")
        if section.notes:
            parts.append(f"<p class='muted'>{html.escape(section.notes)}</p>")
        return "".join([*parts, "</section>"])

    def _place(self, drawn: dict[str, Any]) -> str:
        name = f"chart{len(self.charts)}"
        self.charts[name] = drawn
        return f"<div class='chart' id='{name}'></div>"


def table(rows: pd.DataFrame, places: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return rows as HTML, with units; columns of zeros are listed below.

    Args:
        rows: The rows.
        places: Ids of elements of the page by task id, to which the ids in `task_id` become links.
    """
    zeros = [str(name) for name in rows if name not in ALWAYS and _is_zero(rows[name])]
    shown = rows.drop(columns=zeros)
    tags = {name: "" if pd.api.types.is_numeric_dtype(shown[name]) else " class='text'" for name in shown}
    head = "".join(f"<th{tags[name]}>{html.escape(heading(str(name)))}</th>" for name in shown)
    body = "".join(f"<tr>{_cells(row, tags, places)}</tr>" for row in shown.astype(object).to_dict("records"))
    listed = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    size = "scroll tall" if len(shown) > TALL_ROWS else "scroll"
    return f"<div class='{size}'>{listed}</div>{_all_zero(map(heading, zeros))}"


def _cells(row: Mapping[Any, Any], tags: Mapping[Any, str], places: Mapping[str, str]) -> str:
    return "".join(f"<td{tags[name]}>{_linked(str(name), row[name], places)}</td>" for name in row)


def _linked(name: str, value: Any, places: Mapping[str, str]) -> str:
    text = html.escape(cell(name, value))
    place = places.get(value) if name == "task_id" else None
    return text if place is None else f"<a href='#{place}'>{text}</a>"


def _is_zero(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and len(column) > 0 and bool((column == 0).all())


def _all_zero(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"<p class='muted'>Zero: {html.escape(listed)}.</p>" if listed else ""


def figures(values: Mapping[str, Any]) -> str:
    """Return figures as boxes; figures that are 0 are listed below."""
    boxes = [
        f"<div><b>{html.escape(cell(name, value))}</b>{html.escape(heading(name))}</div>"
        for name, value in values.items()
        if value != 0
    ]
    zeros = [heading(name) for name, value in values.items() if value == 0]
    return f"<div class='figures'>{''.join(boxes)}</div>{_all_zero(zeros)}"


_SHED: Final = "Shed, by reason and group"
_SHED_BY: Final = ("queue", "task_group", "shed_reason")
# Number of groups in the chart of a queue: the groups with the most shed tasks.
MAX_GROUPS: Final = 20


def shed_section(tables: Tables, recent: str) -> Section:
    """Return the shed tasks as charts, or as a sentence if that suffices.

    Args:
        tables: The tables.
        recent: The days of the tasks, as text; empty if all.
    """
    counts = shed_counts(tables)
    total = counts["tasks"].sum()
    if not total:
        return Section(_SHED, f"No task was shed{recent}.")
    if len(counts) == 1:
        reason = counts["shed_reason"].iloc[0]
        return Section(_SHED, f"{total:,} tasks were shed{recent}, all for the reason {reason!r}.")
    drawn = {}
    for queue, one in counts.groupby("queue"):
        largest = one.groupby("task_group")["tasks"].sum().nlargest(MAX_GROUPS).index
        drawn[str(queue)] = [charts.dressed(charts.shed(one[one["task_group"].isin(largest)]))]
    return Section(_SHED, f"Tasks that were shed{recent}.", drawn)


def shed_counts(tables: Tables) -> pd.DataFrame:
    """Return the number of shed tasks by queue, group and reason."""
    counts = Sums(_SHED_BY, {"tasks": "sum"})
    for paths in tables.newest("tasks").values():
        for rows in tables.batches("tasks", paths, _SHED_BY[1:], pc.field("outcome") == "shed"):
            group = pc.fill_null(rows["task_group"], NO_NAME)
            reason = pc.fill_null(rows["shed_reason"], "unknown")
            each = pa.array([1] * len(rows), pa.int64())
            counts.add(pa.table([rows["queue"], group, reason, each], names=[*_SHED_BY, "tasks"]))
    return counts.rows().to_pandas()


_TIMES: Final = ("wait_seconds", "run_seconds")
_FATES: Final = ("success", "failure", "cancelled", "shed", "pending")
_CHAIN_TEXT: Final = (
    "Roots whose runs put further tasks with `parent`, by their number of hops. A chain is in time if all "
    "its tasks are. A task that was refused because of its parent's deadline leaves no event."
)


def chain_section(tables: Tables, recent: str) -> Section | None:
    """Return the chains by number of hops; None if there are none.

    Args:
        tables: The tables.
        recent: The days of the chains, as text; empty if all.
    """
    amounts = ("chains", "in_time", *_FATES, "wait_seconds", "run_seconds")
    counts, columns = Sums(("queue", "hops"), dict.fromkeys(amounts, "sum")), ("hops", "outcome", *_TIMES)
    paths = tables.newest("chains")
    if not paths:
        return None
    for some in paths.values():
        for rows in tables.batches("chains", some, (*columns, "in_time")):
            found = {
                "queue": rows["queue"],
                "hops": rows["hops"],
                "chains": pa.array([1] * len(rows), pa.int64()),
            }
            found["in_time"] = rows["in_time"].cast(pa.int64())
            found |= {fate: pc.equal(rows["outcome"], fate).cast(pa.int64()) for fate in _FATES}
            counts.add(pa.table(found | {name: rows[name] for name in _TIMES}))
    table = counts.rows().to_pandas()
    for name in _TIMES:
        table[name] = table[name] / table["chains"]
    table = table.rename(columns={name: f"mean_{name}" for name in _TIMES})
    return Section("Chains", f"{_CHAIN_TEXT}{recent and f' Those{recent}.'}", table=table)


_REPLAY: Final = "Replay under other policies"
_CHECKED: Final = (
    "As a check, the table compares the recording with a replay of the recorded policy. Expect the other "
    "scenarios to deviate as much."
)


def replay_section(out: Folder, run_id: str) -> Section | None:
    """Return the section about the last replay; None if it does not match the tables' events.

    Args:
        out: The output folder.
        run_id: Id of the run that the report describes.
    """
    try:
        replay = last_replay(out)
    except BadInput as error:
        return Section(_REPLAY, f"There is no chart: {error}.")
    if replay is None or normalized(replay["events"]) != normalized(required_current(out).events):
        return None
    texts = [*conclusions(replay), f"{replayed_days(replay)}."]
    if replay["run_id"] != run_id:
        run = f"run {replay['run_id']}, complete up to {moment(replay['as_of_ms'])}"
        texts.append(f"The replay is of an earlier run than the tables: {run}.")
    off = [one["check"] for one in replay["queues"] if not one["check"]["within"]]
    texts += [f"Caution: {difference(check)}." for check in off]
    notes = f"{_CHECKED} {replay['record']['imputation']}"
    scenarios = pd.DataFrame(replay["scenarios"]).fillna({"queue": NO_NAME})
    drawn = {
        str(queue): [charts.dressed(chart) for chart in charts.replayed(one)]
        for queue, one in scenarios.groupby("queue")
    }
    return Section(_REPLAY, " ".join(texts), drawn, pd.DataFrame(map(_checked, replay["queues"])), notes)


def _checked(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the check of a queue as a row of a table."""
    check, record = one["check"], one["record"]
    return {
        "queue": queue_name(one["queue"]),
        "policy": check["policy"],
        "servers": record["servers"],
        "in time, recorded": check["served_in_time_recorded"],
        "in time, replayed": check["served_in_time_replayed"],
        "difference_share": check["difference_ratio"],
        "not finished, left out": record["running"],
        "run times drawn": record["service_times_imputed"],
    }
