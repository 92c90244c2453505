"""The sections about SQL, asyncio, telemetry, commands, cold starts and simulations."""

from __future__ import annotations

from operator import truediv
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import figures_of, read
from benchmarks.overload_setting import (
    BURST_FACTOR,
    BURST_LOAD,
    BURST_SECONDS,
    FOLLOWED_SECONDS,
    RECOVERED_WITHIN,
    SEEDS,
)
from benchmarks.render import Block, Code, Prose, Sections, Table, across, columns, spread

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

SETTINGS: Final = {
    "off": "none",
    "no SDK": "`OpenTelemetry()`, no SDK",
    "SDK, not sampled": "with the SDK, no trace sampled",
    "SDK, every trace sampled": "with the SDK, every trace sampled",
}
# The package that each queue is measured with.
QUEUES: Final = {
    "freshq": "freshq",
    "procrastinate": "procrastinate {}",
    "taskiq": "taskiq, taskiq-postgres {}",
}
IMPORT, WITH_CLIENTS = 0, 1
TRACED, UNTRACED = "now", "untraced"
# Packages with a smaller share of the imports are summed.
SHOWN_SHARE: Final = 0.04
SHOWN_LOADS: Final = (0.5, 0.95, 1.1, 2.0, 5.0, 10.0)
SHOWN_POLICY_LOADS: Final = (0.8, 0.95, 1.1, 2.0, 3.0, 10.0)
INTERVAL: Final = "{0[mean]:.2f} ± {0[half_width]:.2f}"


def asyncio_sections() -> Sections:
    """Return the section about event loops."""
    found = figures_of("asyncio")
    rows = [each | {"name": QUEUES[name].format(each["version"])} for name, each in found["queues"].items()]
    text = f"""{found["puts"]:,} puts by {found["putters"]} coroutines, and {found["sleepers"]} tasks that
        sleep for {found["sleep_seconds"]:g} s, up to {found["sleepers"]} at a time. The first two columns
        are the median, the lowest and the highest of {len(rows[0]["seconds"])} rounds in turns; the others
        are the maximum of all rounds:"""
    table = columns(
        rows,
        {
            "": "{name}",
            "puts a second": "{puts_per_second:,.0f}",
            f"seconds until all {found['sleepers']} were done": "{seconds:.1f}",
            "most at once": lambda row: f"{max(row['most_sleeping'])}",
            "threads": lambda row: f"{max(row['threads'])}",
            "connections": lambda row: f"{max(row['connections'])}",
        },
    )
    return {("asyncio", "coroutines"): [Prose(text), table]}


def cli_sections() -> Sections:
    """Return the section about commands."""
    found = figures_of("cli")
    rows = [
        [
            f"`python -c '{name}'`" if name.startswith("import ") else f"`{name}`",
            f"{seconds:.2f}",
            f"{found['at_most'][name]:.2f}" if name in found["at_most"] else "",
        ]
        for name, seconds in found["processor_seconds"].items()
        if name != "import nothing"
    ]
    return {("cli", "commands"): [Table(["command", "processor seconds", "at most"], rows)]}


def telemetry_sections() -> Sections:
    """Return the section about telemetry."""
    settings = figures_of("telemetry")["settings"]
    rows = [[title, settings[name]] for name, title in SETTINGS.items()]
    cells = [
        [
            title,
            *(
                cell
                for part in ("put", "work")
                for cell in (f"{each[f'{part}_microseconds']:.0f}", f"{each[f'{part}_ratio']:.1f}")
            ),
        ]
        for title, each in rows
    ]
    head = ["telemetry", "put, µs", "ratio", "claim, run, settle, µs", "ratio"]
    return {("telemetry", "costs"): [Table(head, cells)]}


def cold_start_page() -> Sections:
    """Return the sections of docs/contributing/cold-starts.md."""
    result = read("coldstart")
    found, machine = result["figures"], result["machine"]
    text = f"Medians of {found['rounds']} starts in turns, Python {machine['python']}, {machine['system']}:"
    table = columns(
        found["processor_ms"].items(),
        {
            "function": lambda item: "".join(word.title() for word in item[0].split("_")),
            "import": lambda item: f"{start_ratio(item[1], TRACED, IMPORT):.2f}",
            "import and clients": lambda item: f"{start_ratio(item[1], TRACED, WITH_CLIENTS):.2f}",
            "the same with `Tracing=off`": lambda item: f"{start_ratio(item[1], UNTRACED, WITH_CLIENTS):.2f}",
        },
    )
    shares = {name: share for name, share in found["shares_of_imports"].items() if share >= SHOWN_SHARE}
    shares["all others"] = 1 - sum(shares.values())
    head = "of the time that imports take, without what a package imports itself"
    imports = columns(shares.items(), {head: "{0[0]}", "share": "{0[1]:.0%}"})
    return {("coldstart", "ratios"): [Prose(text), table], ("coldstart", "imports"): [imports]}


def start_ratio(function: Mapping[str, Any], variant: str, part: int) -> float:
    """Return a function's processor time as a multiple of the time before it had bytecode."""
    return float(function[variant][part] / function["before"][part])


def overload_page() -> Sections:
    """Return the section of docs/overload.md."""
    return {("overload", "orders"): [_by_load(figures_of("overload")["by_load"], "order", SHOWN_LOADS)]}


def policy_sections() -> Sections:
    """Return what else was simulated, and how fast."""
    found, simulator = figures_of("overload"), figures_of("simulator")
    text = f"""Simulated tasks a second on one core, as `make bench PARTS=simulator` measures them: the
        fastest of {simulator["rounds"]} runs of {simulator["tasks"]:,} tasks, in turns."""
    speeds = across(
        "policy",
        simulator["tasks_per_second"],
        lambda speed: f"{round(speed, -4):,}",
        "at {} times the capacity".format,
    )
    return {
        ("overload", "uneven"): [_by_load(found["by_load_uneven"], "order", SHOWN_LOADS)],
        ("overload", "burst"): _burst(found["after_burst"]),
        ("overload", "policies"): [_by_load(found["by_policy"], "policy", SHOWN_POLICY_LOADS)],
        ("overload", "tenants"): [_by_load(found["by_flood"], "tenants", SHOWN_LOADS)],
        ("simulator", "speed"): [Prose(text), speeds],
    }


def _by_load(rows: Sequence[Mapping[str, Any]], kind: str, loads: Sequence[float]) -> Table:
    by_name: dict[str, dict[float, Any]] = {row[kind]: {} for row in rows}
    for row in rows:
        if row["load"] in loads:
            by_name[row[kind]][row["load"]] = row
    return across("load / capacity", by_name, INTERVAL.format, "{:g}".format)


def _burst(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    most, within = 100 / (BURST_LOAD * BURST_FACTOR), 100 * RECOVERED_WITHIN
    text = f"""A load of {BURST_LOAD:g} of the capacity grows to {BURST_FACTOR:g} times that for
        {BURST_SECONDS:g} s: then at most {most:g} % can be done. The table shows the share of tasks done in
        time by the moment of their put, over {len(SEEDS)} seeds with 95 % intervals. Last column: seconds
        after the burst until the share of each second stays within {within:g} points of the share before the
        burst."""
    spans = list(rows[0]["spans"])
    cells = [
        [row["order"], *(INTERVAL.format(row["spans"][span]) for span in spans), recovery(row)]
        for row in rows
    ]
    return [Prose(text), Table(["order", *spans, "recovered after"], cells)]


def recovery(row: Mapping[str, Any]) -> str:
    """Return how long an order needed to recover."""
    seconds = row["recovery_seconds"]
    return f"not within {FOLLOWED_SECONDS:.0f} s" if seconds is None else f"{seconds:.0f} s"


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
