"""OUT/report.html: one file that needs no network, for screen and print."""

from __future__ import annotations

import html
import json
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import vl_convert

from freshq_pipeline.gold.minutes import AGES_SECONDS
from freshq_pipeline.report import charts, time_steps
from freshq_pipeline.report.evidence import events_of
from freshq_pipeline.report.sections import (
    PageDrawing,
    Section,
    chain_section,
    figures,
    replay_section,
    shed_section,
)
from freshq_pipeline.report.tables import MAX_DAYS, Tables
from freshq_pipeline.report.words import (
    MISSING_EVENTS,
    NO_NAME,
    fates_of,
    heading,
    headline,
    moment,
    next_step,
    queue_name,
    value_share,
)
from freshq_pipeline.schemas import OUTCOMES, VALUES, WAIT_PERCENTILES
from freshq_pipeline.spark.java import cache_folder
from freshq_pipeline.storage.results import NEW, REPORT, damage_text, published_summary
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq_pipeline.storage.folder import Folder


# Light and dark, for wide and narrow screens, and for print.
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --muted: #56616b; --line: #d9dee3;
  --wrong: #fdeceb }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --paper: #15191d; --muted: #a3adb6; --line: #38414a; --wrong: #46201d }
}
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1020px; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { margin: 0; font-size: 1.5rem } h2 { margin: 2.2rem 0 .3rem; font-size: 1.15rem }
h3 { margin: .9rem 0 .2rem; font-size: 1rem } p { margin: .3rem 0 } .muted { color: var(--muted) }
.headline { font-size: 1.15rem; margin: .8rem 0 } .headline b { font-size: 1.6rem }
.headline div { margin: .3rem 0 }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0 .4rem }
.figures div { border: 1px solid var(--line); border-radius: 6px; padding: .45rem .7rem }
.figures b { display: block; white-space: nowrap; font-size: 1.3rem; font-variant-numeric: tabular-nums }
.wrong { background: var(--wrong); padding: .45rem .7rem; border-radius: 6px }
.scroll { overflow-x: auto; background:
    linear-gradient(to right, var(--paper) 40%, transparent) left / 32px 100% no-repeat local,
    linear-gradient(to left, var(--paper) 40%, transparent) right / 32px 100% no-repeat local,
    linear-gradient(to right, var(--line), transparent) left / 14px 100% no-repeat scroll,
    linear-gradient(to left, var(--line), transparent) right / 14px 100% no-repeat scroll }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
.text { text-align: left }
.tall { max-height: 36rem; overflow-y: auto }
.tall th { position: sticky; top: 0; background: var(--paper) }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 7rem }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 1rem }
.chart { width: 100%; min-width: 0 } section { break-inside: avoid }
@media (max-width: 600px) { body { margin: 1rem auto } th, td { padding: .2rem .5rem } }
@media print {
  :root { color-scheme: light; --ink: #000; --paper: #fff; --muted: #444; --line: #ccc; --wrong: #fdeceb }
  body { margin: 0; max-width: none; font-size: 11px }
  .tall { max-height: none }
}
"""

MAX_ROWS: Final = 20
MAX_VIOLATIONS: Final = 50
# Number of queues in the charts.
MAX_QUEUES: Final = 8
_VALUE_TEXT: Final = (
    "The value put equals what was delivered, lost (decayed, late, failure, shed), cancelled or is still open, so "
    "the difference must be 0. A task without a value counts as 1."
)
_FIGURES: Final = ("tasks", *OUTCOMES, "inversions", *WAIT_PERCENTILES)


def write_report(out: Folder) -> dict[str, str]:
    """Write the report of the current run; return a sentence about the tasks of each queue.

    Raises:
        BadInput: If there is no run.
    """
    summary = published_summary(out)
    tables = Tables(out, summary["run_id"], _largest(summary))
    headlines = _headlines(summary)
    out.write(REPORT, page(summary, _headlines_html(headlines), _sections(tables, summary)))
    return headlines


def _sections(tables: Tables, summary: dict[str, Any]) -> list[Section]:
    groups = tables.largest("groups", "offered", MAX_ROWS)
    ledger = tables.all("ledger")
    days = ledger["day"].nunique()
    recent = f" on the newest {MAX_DAYS} of {days:,} days" if days > MAX_DAYS else ""
    sections = [*_over_time(tables, summary, recent), shed_section(tables, recent)]
    if len(groups) > 1:
        text = "Puts, successes and time of the largest groups. Jain's index is 1 if all get equal shares."
        sections.append(Section("Groups", text, table=groups.fillna({"task_group": NO_NAME})))
    chains = chain_section(tables, recent)
    sections += [] if chains is None else [chains]
    workers = tables.largest("workers", "claims", MAX_ROWS)
    sections.append(Section("Workers", "The busiest workers.", table=workers))
    replay = replay_section(tables.out, tables.run_id)
    sections += [] if replay is None else [replay]
    sections += [*_kinds(tables, ledger), *_ledger(ledger, recent)]
    violations = tables.first("violations", MAX_VIOLATIONS)
    if len(violations):
        text = f"The first {MAX_VIOLATIONS} tasks that violate the ledger, each with a link to its events."
        sections.append(Section("Violations", text, table=violations, events=events_of(tables, violations)))
    return [*_queues(summary), *sections, _quality(summary)]


def _kinds(tables: Tables, ledger: pd.DataFrame) -> list[Section]:
    """Return the value of the tasks by kind, if tasks have values."""
    if not ledger["valued"].any():
        return []
    text = "The kinds of tasks that were worth most. Lost is what was shed, failed, done late or decayed."
    kinds = tables.largest("kinds", "value_offered", MAX_ROWS)
    titles = {"offered": "tasks", "value_offered": "value", "value_delivered": "delivered"}
    titles |= {"value_lost": "lost", "value_share": "delivered_share"}
    shown = kinds.fillna({"kind": NO_NAME}).rename(columns=titles)
    return [Section("Value by kind", text, table=shown)]


def _ledger(ledger: pd.DataFrame, recent: str) -> list[Section]:
    """Return the ledger: totals, the newest days first, and older days that do not balance.

    If tasks have values, the same in value follows.
    """
    text = "Created tasks equal the sum of all fates, so the difference must be 0."
    if recent:
        text += f" The table shows tasks created{recent}, the total, and all older days with violations."
    newest = sorted(ledger["day"].dropna().unique())[-MAX_DAYS:]
    wrong = (ledger[["difference", "violations", "value_difference"]] != 0).any(axis="columns")
    shown = ledger[ledger["day"].isin(newest) | ledger["day"].isna() | wrong]
    shown = shown.sort_values("day", ascending=False, na_position="first").sort_values("queue", kind="stable")
    shown = shown.fillna({"day": "total"})
    of_value = ["valued", *VALUES, "value_difference"]
    sections = [Section("Ledger", text, table=shown.drop(columns=of_value))]
    if ledger["valued"].any():
        worth = shown[["queue", "day", *of_value]].rename(columns=lambda name: name.removeprefix("value_"))
        sections.append(Section("Ledger in value", _VALUE_TEXT, table=worth))
    return sections


def _largest(summary: dict[str, Any]) -> list[str]:
    """Return the names of the largest queues."""
    by_size = sorted(summary["queues"], key=lambda row: -row["tasks"])
    return [queue_name(row["queue"]) for row in by_size[:MAX_QUEUES]]


def _headlines(summary: dict[str, Any]) -> dict[str, str]:
    """Return a sentence about the tasks of each queue."""
    figures = {queue_name(row["queue"]): row for row in summary["queues"]}
    return {
        queue: f"{headline(fates_of(one), one['wait_p50_seconds'], value_share(one))} {next_step(one)}"
        for queue, one in ((name, figures[name]) for name in _largest(summary))
    }


def _headlines_html(headlines: dict[str, str]) -> str:
    lines = []
    for queue, sentence in headlines.items():
        first, comma, rest = sentence.partition(", ")
        named = f"{html.escape(queue)}: " if len(headlines) > 1 else ""
        lines.append(f"<div>{named}<b>{first}</b>{comma}{rest}</div>")
    return "".join(lines)


def _queues(summary: dict[str, Any]) -> list[Section]:
    """Return the figures of each queue if there are several."""
    rows = [row | {"queue": queue_name(row["queue"])} for row in summary["queues"]]
    if len(rows) == 1:
        return []
    text = "Figures of each queue."
    if any(row["inversions"] is None for row in rows):
        text += " Only queues that are served newest first have inversions."
    if len(rows) > MAX_QUEUES:
        text += f" The charts show the {MAX_QUEUES} queues with the most tasks."
    return [Section("Queues", text, table=pd.DataFrame(rows))]


def _over_time(tables: Tables, summary: dict[str, Any], recent: str) -> list[Section]:
    """Return the charts over time, in steps of seconds if the recording is short."""
    as_of_ms = summary["as_of_ms"]
    short = time_steps.short_recording(tables, as_of_ms)
    if short is not None:
        rows = time_steps.by_second(short, as_of_ms)
        ages_seconds = time_steps.SHORT_AGES_SECONDS
        waiting = f"Tasks waiting for their first claim{recent}, by age."
    elif tables.newest("minutes"):
        rows = time_steps.by_minute(tables)
        ages_seconds = AGES_SECONDS
        waiting = f"Waiting tasks{recent}, by age."
    else:
        return []
    x = charts.time_axis(rows)
    fates = f"Finished tasks{recent} by fate, and puts (line)."
    waits = f"Percentiles of the time from put to first claim{recent}, at the time of the claim."
    ages = f"Age of the oldest and the newest waiting task{recent}, and the greatest age at a claim."
    sections = [
        Section("Fate of tasks over time", fates, _each(rows, lambda one: charts.fates(one, x))),
        Section("Backlog by age", waiting, _each(rows, lambda one: charts.backlog(one, x, ages_seconds))),
        Section("Waits", waits, _each(rows, lambda one: charts.waits(one, x))),
        Section("Freshness", ages, _each(rows, lambda one: charts.freshness(one, x))),
    ]
    return [section for section in sections if section.charts]


def _each(
    rows: pd.DataFrame, draw: Callable[[pd.DataFrame], charts.Drawn | None]
) -> dict[str, list[dict[str, Any]]]:
    """Return the chart of each queue that has one."""
    drawn = {str(queue): draw(one) for queue, one in rows.groupby("queue")}
    return {queue: [charts.dressed(one)] for queue, one in drawn.items() if one is not None}


def _quality(summary: dict[str, Any]) -> Section:
    names = ("read", "distinct", "duplicate", "after_as_of", "too_late", "quarantined", "no_task")
    rows = [(heading(f"events_{name}"), summary[f"events_{name}"]) for name in names]
    rows += [(f"quarantined: {reason}", count) for reason, count in summary["quarantined_by_reason"].items()]
    rows += _unknown_fields(summary)
    text = "Records read = distinct events + duplicates + after as-of + too late + quarantined + not about a "
    text += "task. Quarantined records are in quarantine/."
    zeros = [name for name, count in rows if not count]
    if zeros:
        text += f" Zero: {', '.join(zeros)}."
    found = [row for row in rows if row[1]]
    return Section("Data quality", text, table=pd.DataFrame(found, columns=["records", "count"]))


def _unknown_fields(summary: dict[str, Any]) -> list[tuple[str, int]]:
    counts = {"events with unknown fields": summary["events_with_unknown_fields"]}
    counts |= {f"unknown field: {name}": count for name, count in summary["unknown_fields"].items()}
    if others := summary["other_unknown_fields"]:
        counts["other unknown fields"] = others
    return list(counts.items())


def page(summary: dict[str, Any], headlines: str, sections: list[Section]) -> str:
    """Return the report as HTML.

    Args:
        summary: Summary of the run.
        headlines: Sentences about the tasks of each queue, as HTML.
        sections: Sections in order.
    """
    queues = _largest(summary)
    drawing = PageDrawing(names_queues=len(queues) > 1)
    body = "".join(map(drawing.section, sections))
    # A closing tag in the name of a group must not end the script.
    data = json.dumps(drawing.charts).replace("<", "\\u003c")
    names = html.escape(", ".join(queues))
    value = {} if value_share(summary) is None else {"value_share": value_share(summary)}
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>freshq: what happened to every task of {names}</title><style>{STYLE}</style></head><body>
<h1>What happened to every task of {"queue" if len(queues) == 1 else "queues"} {names}</h1>
{_damaged(summary)}
<div class="headline">{headlines}</div>
{_accounted(summary)}
{figures({name: summary[name] for name in _FIGURES} | value)}
<p class="muted">Complete up to {moment(summary["as_of_ms"])}; all times are UTC. Run {html.escape(summary["run_id"])}.</p>
{body}
<script>{_scripts()}</script>
<script>
for (const [id, spec] of Object.entries({data})) vegaEmbed("#" + id, spec, {{renderer: "svg", actions: false}});
</script></body></html>
"""


def _damaged(summary: dict[str, Any]) -> str:
    """Return a paragraph about damaged files as HTML; empty if there are none."""
    said = damage_text(summary)
    return "" if said is None else f"<p class='wrong'>{html.escape(said)}. {MISSING_EVENTS}</p>"


def _accounted(summary: dict[str, Any]) -> str:
    """Return as HTML whether the ledger balances."""
    count = summary["ledger_violations"]
    if not count:
        return "<p>The ledger balances: every task is accounted for.</p>"
    new = summary[NEW]
    return (
        f"<p class='wrong'>The ledger does not balance. Violations, listed below: {count:,}. "
        f"New in this run: {new:,}.</p>"
    )


def _scripts() -> str:
    """Return Vega-Lite with its dependencies, so that the page needs no network."""
    cache = cache_folder()
    name = f"vega-lite-{charts.VEGA_LITE}-{version('vl-convert-python')}.js"
    if cache is not None:
        with suppress(OSError, ValueError):  # not cached yet, or cut off
            return (cache / name).read_text(encoding="utf-8")
    made: str = vl_convert.javascript_bundle(vl_version=charts.VEGA_LITE)  # type: ignore[call-arg] # the snippet is optional
    if cache is not None:
        # Without a cache, the next report takes a second longer.
        with suppress(OSError), whole_file(cache / name) as cached:
            cached.write(made.encode())
    return made
