"""OUT/report.html: one file that needs no network, for screen and print."""

from __future__ import annotations

import html
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import vl_convert

from freshq_pipeline.errors import BadInput
from freshq_pipeline.report import by_second, charts
from freshq_pipeline.schemas import OUTCOMES, TABLES
from freshq_pipeline.spark.user_cache import cache_folder
from freshq_pipeline.storage.state import SUMMARY, table_path
from freshq_pipeline.storage.whole_file import whole_file
from freshq_pipeline.tables.minutes import AGES_SECONDS

if TYPE_CHECKING:
    import altair as alt

    from freshq_pipeline.storage.folder import Folder

REPORT: Final = "report.html"
REPLAY: Final = "replay.json"
MAX_ROWS: Final = 20
MAX_VIOLATIONS: Final = 50
# Most queues in the charts.
MAX_QUEUES: Final = 8

_STYLE: Final = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1020px; margin: 2rem auto; padding: 0 1rem; color: #1d2329 }
h1 { margin-bottom: 0 } h2 { margin: 2.2rem 0 .3rem; font-size: 1.15rem } .muted { color: #5b6670 }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; margin: 1.2rem 0 }
.figures div { border: 1px solid #d9dee3; border-radius: 6px; padding: .45rem .7rem }
.figures b { display: block; white-space: nowrap; font-size: 1.3rem; font-variant-numeric: tabular-nums }
.wrong { background: #fdeceb; border-color: #d64f45 !important }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .scroll { overflow-x: auto }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #e3e7eb; text-align: right } th:first-child, td:first-child { text-align: left }
.chart { width: 100% } section { break-inside: avoid }
@media print { body { margin: 0; max-width: none; font-size: 11px } .vega-embed details { display: none } }
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, and a chart or a table."""

    title: str
    text: str
    chart: alt.TopLevelMixin | None = None
    table: pd.DataFrame | None = None


def write_report(out: Folder) -> None:
    """Write the report of the current run.

    Raises:
        BadInput: If there is no run.
    """
    if not out.exists(SUMMARY):
        msg = f"out: no {SUMMARY} in {out.uri}; run the pipeline first"
        raise BadInput(msg)
    summary = out.read_json(SUMMARY)
    replayed = out.read_json(REPLAY) if out.exists(REPLAY) else None
    out.write(REPORT, page(summary, _sections(out, summary, replayed)))


def _read(out: Folder, run_id: str, name: str, columns: list[str] | None = None) -> pd.DataFrame:
    frame: pd.DataFrame = out.table(table_path(run_id, name), columns or list(TABLES[name])).to_pandas()
    return frame.fillna({"queue": charts.NO_NAME})


def _sections(out: Folder, summary: dict[str, Any], replayed: dict[str, Any] | None) -> list[Section]:
    run_id = summary["run_id"]
    largest = _largest(summary)
    tasks = _read(out, run_id, "tasks", ["task_group", "shed_reason", *by_second.COLUMNS])
    tasks = tasks[tasks["queue"].isin(largest)]
    groups = _read(out, run_id, "groups").nlargest(MAX_ROWS, "offered")
    workers = _read(out, run_id, "workers").nlargest(MAX_ROWS, "claims")
    ledger = _read(out, run_id, "ledger").sort_values(["queue", "day"]).fillna({"day": "total"})
    violations = _read(out, run_id, "violations").head(MAX_VIOLATIONS)
    sections = [
        _queues(summary),
        *_over_time(out, summary, tasks),
        Section("Shed, by reason and group", "Tasks that were shed.", charts.shed(tasks)),
        Section("Groups", "Offers and successes of the largest groups.", table=groups),
        Section("Workers", "The busiest workers.", table=workers),
        Section("Ledger", "Created = all fates; the difference must be 0.", table=ledger),
    ]
    if replayed is not None:
        sections.insert(-1, _replay(replayed))
    if len(violations):
        text = f"The first {MAX_VIOLATIONS} tasks that violate the ledger."
        sections.append(Section("Violations", text, table=violations))
    return [*sections, _quality(summary)]


def _largest(summary: dict[str, Any]) -> list[str]:
    """Return the names of the queues with the most tasks."""
    by_size = sorted(summary["queues"], key=lambda row: -row["tasks"])
    return [_name(row["queue"]) for row in by_size[:MAX_QUEUES]]


def _name(queue: str | None) -> str:
    return charts.NO_NAME if queue is None else queue


def _queues(summary: dict[str, Any]) -> Section:
    rows = [row | {"queue": _name(row["queue"])} for row in summary["queues"]]
    text = "The figures of each queue."
    if len(rows) > MAX_QUEUES:
        text += f" The charts show the {MAX_QUEUES} queues with the most tasks."
    return Section("Queues", text, table=pd.DataFrame(rows))


def _over_time(out: Folder, summary: dict[str, Any], tasks: pd.DataFrame) -> list[Section]:
    """Return the charts over time, in steps of seconds if the recording is short."""
    as_of_ms = summary["as_of_ms"]
    if by_second.is_short(tasks, as_of_ms):
        rows = by_second.by_second(tasks, as_of_ms)
        ages_seconds = by_second.AGES_SECONDS
        waiting = "Tasks waiting for their first claim, by age."
    else:
        minutes = _read(out, summary["run_id"], "minutes")
        rows = charts.binned(minutes[minutes["queue"].isin(_largest(summary))])
        ages_seconds = AGES_SECONDS
        waiting = "Waiting tasks, by age."
    fates = "Tasks that ended, and tasks that were put (line)."
    waits = "Time from the put to the first claim, at the time of that claim."
    ages = "Age of the oldest and the newest waiting task, and the greatest age at a claim."
    return [
        Section("Fate of tasks over time", fates, charts.fates(rows)),
        Section("Backlog by age", waiting, charts.backlog(rows, ages_seconds)),
        Section("Waits", waits, charts.waits(rows)),
        Section("Freshness", ages, charts.freshness(rows)),
    ]


def _replay(replayed: dict[str, Any]) -> Section:
    record = replayed["record"]
    checks = " ".join(_checked(one) for one in replayed["queues"])
    text = (
        f"As a check, the recorded policy was replayed. {checks} "
        f"{record['service_times_imputed']:,} service times are imputed. {record['imputation']}"
    )
    return Section("Replay under other policies", text, charts.replayed(replayed["scenarios"]))


def _checked(one: dict[str, Any]) -> str:
    """Return the check of a queue as sentences."""
    check = one["check"]
    verdict = "within" if check["within"] else "NOT within"
    return (
        f"Queue {_name(one['queue'])} ({check['policy']}, {one['record']['servers']} servers): "
        f"{check['served_in_time_replayed']:,} tasks in time, {check['served_in_time_recorded']:,} in the recording. "
        f"The difference of {check['difference_ratio']:.1%} is {verdict} {check['tolerance']:.0%}."
    )


def _quality(summary: dict[str, Any]) -> Section:
    names = ("read", "distinct", "duplicate", "after_as_of", "quarantined", "no_task")
    rows = [(f"events {name.replace('_', ' ')}", summary[f"events_{name}"]) for name in names]
    rows += [(f"quarantined: {reason}", count) for reason, count in summary["quarantined_by_reason"].items()]
    rows += [("events with unknown fields", summary["events_with_unknown_fields"])]
    rows += [(f"unknown field: {name}", count) for name, count in summary["unknown_fields"].items()]
    text = "Records read = distinct events + duplicates + after as-of + quarantined + of no task. Quarantined records are in quarantine/."
    return Section("Data quality", text, table=pd.DataFrame(rows, columns=["records", "count"]))


def page(summary: dict[str, Any], sections: list[Section]) -> str:
    """Return the report as HTML.

    Args:
        summary: Summary of the run.
        sections: Sections in order.
    """
    specs = {
        f"chart{place}": one.chart.to_dict() for place, one in enumerate(sections) if one.chart is not None
    }
    # A closing tag in the name of a group must not end the script.
    data = json.dumps(specs).replace("<", "\\u003c")
    body = "".join(_section(f"chart{place}", one) for place, one in enumerate(sections))
    names = html.escape(", ".join(_largest(summary)))
    as_of = datetime.fromtimestamp(summary["as_of_ms"] / 1000, UTC)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>freshq: outcome of every task</title><style>{_STYLE}</style></head><body>
<h1>What happened to every task</h1>
<p class="muted">Queue: {names}. Complete up to {as_of:%Y-%m-%d %H:%M:%S} UTC; all times are UTC. Run {html.escape(summary["run_id"])}.</p>
<div class="figures">{_figures(summary)}</div>
{body}
<script>{_scripts()}</script>
<script>
for (const [id, spec] of Object.entries({data})) vegaEmbed("#" + id, spec, {{renderer: "svg", actions: false}});
</script></body></html>
"""


def _scripts() -> str:
    """Return Vega-Lite with its dependencies, so that the page needs no network."""
    file = cache_folder() / f"vega-lite-{charts.VEGA_LITE}-{version('vl-convert-python')}.js"
    with suppress(OSError):  # it was not made yet
        return file.read_text(encoding="utf-8")
    made: str = vl_convert.javascript_bundle(vl_version=charts.VEGA_LITE)  # type: ignore[call-arg] # the snippet is optional
    with (
        suppress(OSError),
        whole_file(file) as cached,
    ):  # without a cache, the next report takes a second longer
        cached.write(made.encode())
    return made


def _figures(summary: dict[str, Any]) -> str:
    shown = ["tasks", *OUTCOMES, "inversions", "wait_p50_seconds", "wait_p99_seconds", "ledger_violations"]
    cells = []
    for name in shown:
        value = summary[name]
        text = "-" if value is None else f"{value:,.3g} s" if name.endswith("_seconds") else f"{value:,}"
        wrong = ' class="wrong"' if name == "ledger_violations" and value else ""
        label = name.removesuffix("_seconds").replace("_", " ")
        cells.append(f"<div{wrong}><b>{text}</b>{label}</div>")
    return "".join(cells)


def _section(name: str, section: Section) -> str:
    parts = [
        f"<section><h2>{html.escape(section.title)}</h2><p class='muted'>{html.escape(section.text)}</p>"
    ]
    if section.chart is not None:
        parts.append(f"<div class='chart' id='{name}'></div>")
    if section.table is not None:
        shown = section.table.rename(columns=lambda title: str(title).replace("_", " "))
        rendered = shown.to_html(index=False, border=0, na_rep="-", float_format="{:,.3f}".format)
        parts.append(f"<div class='scroll'>{rendered}</div>")
    return "".join([*parts, "</section>"])
