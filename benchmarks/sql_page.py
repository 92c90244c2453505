"""The sections about SQL, and the names of what the parts about SQL measure."""

from __future__ import annotations

from operator import truediv
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import figures_of, read
from benchmarks.render import Block, Code, Prose, Sections, Table, across, columns, spread

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

PUT: Final = "freshq, put one by one"
ONE_BY_ONE: Final = "freshq, claim and complete one by one"
BY_TEN: Final = "freshq, claims of 10 and complete_many"
DRIVER: Final = "the driver alone, freshq's statements"
PGBENCH: Final = "pgbench, bare SQL"
PROCRASTINATE: Final = "procrastinate, run"
PROCRASTINATE_PUT: Final = "procrastinate, defer one by one"
OBAN: Final = "oban, run"
DURABLE: Final = ", durable"
ON_SQLITE: Final = {
    "litequeue": "litequeue, pop and done",
    "huey": "huey's SqliteHuey, dequeue (deletes the job as it hands it out)",
}
ON_POSTGRESQL: Final = (
    PGBENCH, DRIVER, ONE_BY_ONE, BY_TEN, PROCRASTINATE, OBAN, PUT, PROCRASTINATE_PUT,
)  # fmt: skip
# Each of freshq's ways beside others.
BESIDE: Final = {
    ONE_BY_ONE: (PROCRASTINATE, OBAN, DRIVER, PGBENCH),
    BY_TEN: (PROCRASTINATE, OBAN),
    PUT: (PROCRASTINATE_PUT,),
}


def sql_sections() -> Sections:
    """Return the sections about SQL."""
    whole = read("sql")
    sql = whole["figures"]
    return {
        ("history", "costs"): _history(figures_of("history")),
        ("sql", "durable"): [_durable(sql["sqlite"])],
        ("sql", "postgresql"): _postgresql(sql, whole["machine"]),
        ("sql", "sqlite"): [_sqlite(sql["sqlite"])],
        ("sql", "finished"): [_finished(sql)],
        ("sql_lasting", "minutes"): [_lasting(read("sql_lasting"))],
        ("sql_dead_index", "costs"): [_dead_index(figures_of("sql_dead_index"))],
        ("sql", "plan"): [Code(sql["plan"])],
    }


def _history(found: Mapping[str, Any]) -> list[Block]:
    text = f"""`make bench PARTS=history` measures it: {found["rounds"]} turns of each, of {found["tasks"]}
        tasks. Ratios compare each time with the time on a table without a history in the same turn: medians
        and quartiles. Processor time is the client's, so only SQLite's is shown: it runs in the client."""
    quartiles = "{1:.2f} ({0:.2f} to {2:.2f})".format
    rows = [
        [
            f"{database}, {batch} at a time",
            f"{kinds['off']['wall_us'] / 1000:.2f} ms",
            quartiles(*kinds["on"]["wall_ratios"]),
            quartiles(*kinds["of another queue"]["wall_ratios"]),
            quartiles(*kinds["on"]["processor_ratios"]) if database == "SQLite" else "",
        ]
        for database, by_batch in found["databases"].items()
        for batch, kinds in by_batch.items()
    ]
    head = [
        "a task's put, claim and completion",
        "no history, time a task",
        "with a history, ratio",
        "another queue of the table has one, ratio",
        "with a history, processor time, ratio",
    ]
    return [Prose(text), Table(head, rows)]


def _durable(sqlite: Mapping[str, Sequence[float]]) -> Table:
    titles = {
        PUT: "put one by one",
        ONE_BY_ONE: "claim and complete one by one",
        BY_TEN: "claims of 10 and complete_many",
    }
    rows = []
    for name, title in titles.items():
        kept, fast = sqlite[name + DURABLE], sqlite[name]
        ratio = median(map(truediv, kept, fast))
        rows.append([f"{title}, tasks/s", f"{median(kept):,.0f}", f"{median(fast):,.0f}", f"{ratio:.2f}"])
    return Table(["SQLite, one worker", "durable", "`durable=False`", "ratio"], rows)


def measured_with(found: Mapping[str, Any], names: Container[str] | None = None) -> str:
    """Return the versions of the other queues, and which were not installed."""
    versions = ", ".join(
        f"{name} {each}" for name, each in found["versions"].items() if names is None or name in names
    )
    missing = ", ".join(found["missing"])
    return (f" Versions: {versions}." if versions else "") + (
        f" Not installed, so not measured: {missing}." if missing else ""
    )


def _postgresql(sql: Mapping[str, Any], machine: Mapping[str, Any]) -> list[Block]:
    figures = sql["postgresql"]
    text = f"""Medians of {sql["rounds"]} rounds on {machine["cores"]} cores, whose load average was
        {machine["load_before"]} before.{measured_with(sql)}"""
    rates = {name: figures[name] for name in ON_POSTGRESQL if name in figures}
    ratios = {
        f"{ours}, beside {other}": {
            workers: list(map(truediv, figures[ours][workers], figures[other][workers]))
            for workers in figures[ours]
        }
        for ours, others in BESIDE.items()
        for other in others
        if other in figures
    }
    head = "rate, as a multiple of the other's in the same round"
    return [
        Prose(text),
        across("PostgreSQL, tasks a second", rates, lambda each: f"{median(each):,.0f}", _workers),
        across(head, ratios, ".2f", _workers),
    ]


def _workers(number: str) -> str:
    return f"{number} worker{'s' * (number != '1')}"


def _sqlite(sqlite: Mapping[str, Sequence[float]]) -> Table:
    shown = {name: sqlite[name] for name in (ONE_BY_ONE, BY_TEN, *ON_SQLITE.values()) if name in sqlite}
    return columns(shown.items(), {"SQLite, one worker": "{0[0]}", "tasks/s": "{0[1]:,.0f}"})


def _finished(sql: Mapping[str, Any]) -> Prose:
    without, beside = (sql["finished"][str(rows)] for rows in (0, sql["finished_rows"]))
    return Prose(
        f"""With {sql["finished_rows"]:,} finished rows in the table, 8 workers on PostgreSQL complete
        {spread(beside, ",.0f")} tasks/s one by one; {spread(without, ",.0f")} without the rows, in turns:
        {spread(list(map(truediv, beside, without)), ".2f")} times as many in the same round."""
    )


def _lasting(result: Mapping[str, Any]) -> Prose:
    found, machine = result["figures"], result["machine"]
    minutes = [f"{tasks:,}" for tasks in found["tasks_per_second_by_minute"]]
    return Prose(
        f"""`make bench PARTS=sql-lasting` runs for {len(minutes)} minutes: {found["workers"]} workers claim
        and complete one by one beside {found["finished_rows"]:,} finished rows, while the benchmark refills
        the backlog. Tasks a second in each minute: {", ".join(minutes)}. The load average was
        {machine["load_before"]} before, and {machine["load"]} at the end."""
    )


def _dead_index(found: Mapping[str, Any]) -> Prose:
    put, life = (spread(found["processor_ratios"][step], ".2f") for step in ("put", "put, claim, complete"))
    return Prose(
        f"""`make bench PARTS=sql-dead-index` runs the same work on two tables of one MariaDB in turns: one
        has the index, one does not. With the index a put took {put} times the processor time, and a whole
        life (put, claims of ten, completed together) {life} times: medians of {found["rounds"]} rounds of
        {found["tasks"]} tasks, and the range."""
    )
