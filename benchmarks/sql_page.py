"""The figures of SQL, as sections of a page."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.sections import Name, paragraph, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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


def sections(results: Mapping[str, Mapping[str, Any]]) -> dict[Name, Iterable[str]]:
    """Return the sections with the figures of SQL, from the result of each part by the name of its file."""
    figures = {name: result["figures"] for name, result in results.items()}
    sql = figures["sql"]
    return {
        ("history", "costs"): _history(figures["history"]),
        ("sql", "durable"): _durable(sql["sqlite"]),
        ("sql", "postgresql"): _postgresql(sql, results["sql"]["machine"]),
        ("sql", "sqlite"): _sqlite(sql["sqlite"]),
        ("sql", "finished"): _finished(sql),
        ("sql_lasting", "minutes"): _lasting(figures["sql_lasting"], results["sql_lasting"]["machine"]),
        ("sql_dead_index", "costs"): _dead_index(figures["sql_dead_index"]),
        ("sql", "plan"): ["```text", sql["plan"], "```"],
    }


def _spread(numbers: Sequence[float], form: str = ",.0f") -> str:
    return f"{median(numbers):{form}} ({min(numbers):{form}} to {max(numbers):{form}})"


def _history(found: Mapping[str, Any]) -> Iterator[str]:
    yield from paragraph(
        f"`make bench PARTS=history` measures it: {found['rounds']} turns of each, of "
        f"{found['tasks']} tasks. "
        "Ratios compare each time with that of a table without a history in the same turn: medians and "
        "quartiles. Processor time is the client's, so only SQLite's is shown: it runs in the client."
    )
    yield ""
    rows = []
    for database, by_batch in found["databases"].items():
        for batch, kinds in by_batch.items():
            ratios = [_quartiles(kinds[kind]["wall_ratios"]) for kind in ("on", "of another queue")]
            without = f"{kinds['off']['wall_us'] / 1000:.2f} ms"
            # A server's processor time is its own.
            busy = _quartiles(kinds["on"]["processor_ratios"]) if database == "SQLite" else ""
            rows.append([f"{database}, {batch} at a time", without, *ratios, busy])
    yield from table(
        [
            "a task's put, claim and completion",
            "no history, time a task",
            "with a history, ratio",
            "another queue of the table has one, ratio",
            "with a history, processor time, ratio",
        ],
        rows,
    )


def _quartiles(quartiles: Sequence[float]) -> str:
    lowest, middle, highest = quartiles
    return f"{middle:.2f} ({lowest:.2f} to {highest:.2f})"


def _durable(sqlite: Mapping[str, Sequence[float]]) -> list[str]:
    titles = {PUT: "put one by one", ONE_BY_ONE: "claim and complete one by one"}
    titles[BY_TEN] = "claims of 10 and complete_many"
    rows = []
    for name, title in titles.items():
        kept, fast = sqlite[name + DURABLE], sqlite[name]
        ratio = median(_ratios(kept, fast))
        rows.append([f"{title}, tasks/s", f"{median(kept):,.0f}", f"{median(fast):,.0f}", f"{ratio:.2f}"])
    return table(["SQLite, one worker", "durable", "`durable=False`", "ratio"], rows)


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio within each round."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def _others(sql: Mapping[str, Any]) -> str:
    """Return which other queues were measured, and which were not."""
    versions = ", ".join(f"{name} {each}" for name, each in sql["versions"].items())
    missing = ", ".join(sql["missing"])
    return (f" Versions: {versions}." if versions else "") + (
        f" Not installed, so not measured: {missing}." if missing else ""
    )


def _postgresql(sql: Mapping[str, Any], machine: Mapping[str, Any]) -> Iterator[str]:
    figures = sql["postgresql"]
    shown = [name for name in ON_POSTGRESQL if name in figures]
    yield from paragraph(
        f"Medians of {sql['rounds']} rounds on {machine['cores']} cores, whose load average was "
        f"{machine['load_before']} before."
        f"{_others(sql)}"
    )
    yield ""
    workers = list(figures[ONE_BY_ONE])
    titles = [f"{number} {'worker' if number == '1' else 'workers'}" for number in workers]
    yield from table(
        ["PostgreSQL, tasks a second", *titles],
        [[name, *(f"{median(figures[name][each]):,.0f}" for each in workers)] for name in shown],
    )
    yield ""
    yield from table(
        ["rate, as a multiple of the other's in the same round", *titles],
        [
            [f"{ours}, beside {other}", *_times(figures[ours], figures[other])]
            for ours, others in BESIDE.items()
            for other in others
            if other in figures
        ],
    )


def _times(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> Iterable[str]:
    return (_spread(_ratios(ours[each], theirs[each]), ".2f") for each in ours)


def _sqlite(sqlite: Mapping[str, Sequence[float]]) -> list[str]:
    shown = [name for name in (ONE_BY_ONE, BY_TEN, *ON_SQLITE.values()) if name in sqlite]
    return table(["SQLite, one worker", "tasks/s"], [[name, _spread(sqlite[name])] for name in shown])


def _finished(sql: Mapping[str, Any]) -> list[str]:
    without, beside = (sql["finished"][str(rows)] for rows in (0, sql["finished_rows"]))
    return paragraph(
        f"With {sql['finished_rows']:,} finished rows in the table, 8 workers on PostgreSQL complete "
        f"{_spread(beside)} tasks/s one by one; {_spread(without)} without the rows, in turns: "
        f"{_spread(_ratios(beside, without), '.2f')} times as many in the same round."
    )


def _lasting(found: Mapping[str, Any], machine: Mapping[str, Any]) -> list[str]:
    minutes = [f"{tasks:,}" for tasks in found["tasks_per_second_by_minute"]]
    return paragraph(
        f"`make bench PARTS=sql-lasting` runs for {len(minutes)} minutes: {found['workers']} workers "
        f"claim and complete one by one beside {found['finished_rows']:,} finished rows, while the benchmark "
        f"refills the backlog. Tasks a second in each minute: {', '.join(minutes)}. The load average was "
        f"{machine['load_before']} before, and {machine['load']} at the end."
    )


def _dead_index(found: Mapping[str, Any]) -> list[str]:
    put, life = (_spread(found["processor_ratios"][step], ".2f") for step in ("put", "put, claim, complete"))
    return paragraph(
        "`make bench PARTS=sql-dead-index` runs the same work on two tables of one MariaDB in turns: one "
        "has the index, one does not. "
        f"With the index a put took {put} times the processor time, and a whole life (put, claims of ten, "
        f"completed together) {life} times: medians of {found['rounds']} rounds of {found['tasks']} "
        "tasks, and "
        "the range."
    )
