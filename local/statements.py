"""Write the SQL of the store as text, for reviewers: docs/contributing/sql has a file for each dialect.

    python -m local.statements          # the statements, and the plans of what claims run (minutes)
    python -m local.statements --text   # the statements only; plans stay as they are

Plans come from the database, on a table of a million rows. It stands below its statement, in lines that
begin with `--|`.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from functools import cached_property
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from freshq import Queue
from freshq.stores.sql.agenda import StaleStatements, UpkeepStatements
from freshq.stores.sql.counts import CountStatements, ExactStatements, WaitingStatements
from freshq.stores.sql.database import PLANNING
from freshq.stores.sql.history import HistoryStatements
from freshq.stores.sql.lines import ORDERS, ClaimStatements
from freshq.stores.sql.migrations import CHANGES, Triggers
from freshq.stores.sql.records import RecordStatements
from freshq.stores.sql.schema import schema
from freshq.stores.sql.statements import Statements
from freshq.stores.sql.tasks import GUARDS, PutStatements, ReadStatements, SettleStatements
from freshq.stores.sql.url import parsed_url
from freshq.stores.sql.windows import END, WindowStatements
from local.servers import MariaDB, Postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

FOLDER: Final = Path(__file__).parents[1] / "docs" / "contributing" / "sql"
# Placeholders by name, for readers.
DIALECTS: Final[Mapping[str, sa.Dialect]] = {
    "sqlite": sqlite.dialect(paramstyle="named"),
    "postgresql": postgresql.psycopg.dialect(paramstyle="named"),  # type: ignore[no-untyped-call]
    "mariadb": mysql.pymysql.dialect(paramstyle="named", is_mariadb=True),
}
PLAN: Final = "--| "
WIDTH: Final = 118
# SQLAlchemy begins a line with most clauses; with these it does not.
CLAUSE: Final = re.compile(
    r" (?=(?:SET|SELECT|VALUES|WHERE|AND|JOIN|ORDER BY|FOR UPDATE|RETURNING|ON CONFLICT|ON DUPLICATE)\b)"
)
SECTIONS: Final[Mapping[str, type[Statements]]] = {
    "put": PutStatements,
    "read": ReadStatements,
    "find lines": WindowStatements,
    "claim": ClaimStatements,
    "settle": SettleStatements,
    "what waits": WaitingStatements,
    "oldest of a line": Statements,
    "counts by status": CountStatements,
    "exact counts": ExactStatements,
    "stale tasks": StaleStatements,
    "upkeep": UpkeepStatements,
    "records": RecordStatements,
    "history": HistoryStatements,
}
# What claims run.
PLANNED: Final = ("find lines", "claim")
RETURNING: Final = ("sqlite", "postgresql")
# Statements that only some databases run.
ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "replace_many": ("postgresql",),
    "take_only_line": ("postgresql",),
    "best": ("postgresql",),
    "prepared_best": ("postgresql",),
    "take_lines": RETURNING,
    "finish_many": RETURNING,
    "leave_line_first": RETURNING,
    "lock_listed": ("sqlite", "mariadb"),
    "take": ("mariadb",),
    "leave_line": ("mariadb",),
}
ARMS: Final = {"sqlite": (1, 2), "postgresql": (0,)}
ROWS: Final = 1_000_000
WAITING_ROWS: Final = 300_000
FAR_US: Final = 4_000_000_000_000_000
# The rows of a table of a million: of each ten, three wait, in three lines, and seven are over.
COLUMNS: Final = {
    "task_id": "{id}",
    "queue": "'default'",
    "status": f"CASE WHEN n <= {WAITING_ROWS} THEN 'PENDING' ELSE 'SUCCESS' END",
    "created_us": "n",
    "updated_us": "n",
    "deadline_us": str(FAR_US),
    "expires": str(FAR_US // 1_000_000),
    "request_token": "'token'",
    "put_token": "'token'",
    "priority": "0",
    "attempts": "0",
    "line": f"CASE WHEN n <= {WAITING_ROWS} THEN {{line}} END",
    "agenda": f"CASE WHEN n <= {WAITING_ROWS} THEN 'stale' ELSE 'over' END",
    "due_us": str(FAR_US),
    "payload": "'1'",
}
SERIES: Final = {
    "sqlite": f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS}) "
    "SELECT n FROM s) AS numbers",
    "postgresql": f"generate_series(1, {ROWS}) AS numbers(n)",
    "mariadb": f"(SELECT seq AS n FROM seq_1_to_{ROWS}) AS numbers",
}
TEXTS: Final = {
    "sqlite": {"id": "printf('task-%07d', n)", "line": "'0' || (n - 3 * (n / 3))"},
    "postgresql": {"id": "'task-' || lpad(n::text, 7, '0')", "line": "'0' || (n - 3 * (n / 3))"},
    "mariadb": {"id": "CONCAT('task-', LPAD(n, 7, '0'))", "line": "CONCAT('0', MOD(n, 3))"},
}
# A server counts the rows by itself soon after; SQLite never does.
ANALYZE: Final = {"postgresql": "VACUUM ANALYZE tasks", "mariadb": "ANALYZE TABLE tasks"}
# The tasks that a claim of one task skips.
VALUES: Final = {
    "of_queue": "default",
    "of_line": "01",
    "of_after": "",
    "of_until": END,
    "of_count": 65,
    "ids": ["task-0000001"],
    "line_0": "00",
    "line_1": "01",
    "count_0": 1,
    "count_1": 1,
    "wanted_line": ["00", "01"],
    "wanted_count": [1, 1],
    "span_line": ["00", "01"],
    "span_after_us": [0, 0],
    "span_before_us": [FAR_US, FAR_US],
    "others_from": END,
    "level_from": END,
    "others_until": END,
    "created_after_us": 0,
    "created_before_us": FAR_US,
    "deadline_after_us": 0,
    "looked": 65,
    "at_most": 1,
    "now_us": 1,
    "token": "worker:token",
    "version": "version",
    "lease_from_us": 1,
    "lease_until_us": 2,
    "new_expires": FAR_US // 1_000_000,
}
BINARY: Final = ("of_queue", "of_line", "of_after", "of_until", "ids")
PARAMETER: Final = re.compile(r"(?<!:):([a-z]\w*)")
EXPANDING: Final = re.compile(r"\(__\[POSTCOMPILE_(\w+)\]\)")


class Entry(NamedTuple):
    """A statement.

    Attributes:
        name: Its section, its name and its variant.
        says: What it does.
        text: Its text, formatted.
    """

    name: str
    says: str
    text: str


def entries(dialect: str) -> Iterator[Entry]:
    """Yield the statements of a dialect: of tables, of histories' triggers, and of verbs."""
    tables = schema("tasks", dialect)
    for table in tables.metadata.sorted_tables:
        made: list[CreateTable | CreateIndex] = [CreateTable(table)]
        made += (CreateIndex(index) for index in sorted(table.indexes, key=str))
        texts = [_formatted(str(each.compile(dialect=DIALECTS[dialect]))) for each in made]
        yield Entry(f"table {table.name}", "", ";\n".join(texts))
    yield from _triggers(dialect)
    for section, of_class in SECTIONS.items():
        shown: set[str] = set()
        for entry in _of_section(section, of_class, dialect):
            # A statement is listed once, whether or not it is also prepared for the driver.
            if entry.text not in shown:
                shown.add(entry.text)
                yield entry


def _triggers(dialect: str) -> Iterator[Entry]:
    place = "public." if dialect == "postgresql" else ""
    triggers = Triggers(schema("tasks", dialect), DIALECTS[dialect], lambda _table: place)
    for event in CHANGES:
        text = ";\n".join(map(_formatted, triggers.texts(event)))
        yield Entry(f"trigger {event}", "Keep the recorded events, if the queue has a history.", text)


def _of_section(section: str, of_class: type[Statements], dialect: str) -> Iterator[Entry]:
    # Instead of the driver's input, the statement itself, which can be compiled to be read.
    readable = type(of_class.__name__, (of_class,), {"prepared": lambda _self, statement, *_: statement})
    statements = readable(schema("tasks", dialect), DIALECTS[dialect])
    for name, member in vars(of_class).items():
        if not isinstance(member, cached_property) or name.startswith("_"):
            continue
        if dialect in ONLY.get(name, (dialect,)):
            for variant, statement in _variants(getattr(statements, name), dialect):
                if isinstance(statement, sa.SelectBase | sa.Insert | sa.Update | sa.Delete):
                    title = f"{section}: {name}{variant}"
                    yield Entry(title, cleandoc(member.__doc__ or ""), _text(statement, dialect))


def _variants(value: Any, dialect: str) -> Iterator[tuple[str, Any]]:
    """Yield the statements of one property, each with its difference from the others."""
    if isinstance(value, dict):
        yield from ((f", {_key(key)}", statement) for key, statement in value.items())
    elif callable(value) and not isinstance(value, sa.ClauseElement):
        for newest_first in ORDERS:
            for arms in ARMS[dialect]:
                lines = f", lines: {arms}" if arms else ""
                yield f", {_key(newest_first)}{lines}", value(newest_first, arms)
    else:
        yield "", value


def _key(key: object) -> str:
    if key in GUARDS:
        by_lease, by_version = key
        return f"guarded by status{', lease' * by_lease}{', version' * by_version}"
    return str(key) if isinstance(key, str) else "newest first" if key else "oldest first"


def _text(statement: sa.ClauseElement, dialect: str) -> str:
    """Return a statement with named parameters, and with the values that never change."""
    compiled: Any = statement.compile(dialect=DIALECTS[dialect])
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    text = EXPANDING.sub(r"(:\1)", str(compiled))
    return _formatted(
        PARAMETER.sub(lambda found: repr(constants[found[1]]) if found[1] in constants else found[0], text)
    )


def _formatted(text: str) -> str:
    """Return a statement with a clause a line, indented by the parentheses around it."""
    lines: list[str] = []
    depth = 0
    for line in CLAUSE.sub("\n", text).replace("(SELECT", "(\nSELECT").splitlines():
        indent = "  " * depth
        wrapped = textwrap.wrap(
            line.strip(),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped
        depth += line.count("(") - line.count(")")
    return "\n".join(lines)


def page(dialect: str, plans: Mapping[str, Iterable[str]]) -> str:
    """Return the file of a dialect.

    Args:
        dialect: Its name.
        plans: The lines of plans, by the name of the statement.
    """
    parts = [
        f"-- `make sql-statements` writes this file. It has every statement of the store on {dialect}.\n"
    ]
    for name, says, text in entries(dialect):
        head = "\n".join(f"-- {line}".rstrip() for line in [name, *says.splitlines()])
        plan = "".join(f"\n{PLAN}{line}" for line in plans.get(name, ()))
        parts.append(f"{head}\n{text};{plan}\n")
    return "\n".join(parts)


def plans_of(text: str) -> dict[str, list[str]]:
    """Return the plans of a file, by the name of the statement."""
    plans: dict[str, list[str]] = {}
    for part in text.split("\n\n"):
        lines = part.strip().splitlines()
        found = [line.removeprefix(PLAN) for line in lines if line.startswith(PLAN)]
        if found:
            plans[lines[0].removeprefix("-- ")] = found
    return plans


def measured_plans(dialect: str, engine: sa.Engine) -> dict[str, list[str]]:
    """Return the plans of claims, on the table of a million rows."""
    plans = {}
    for name, _says, text in entries(dialect):
        if name.split(":")[0] in PLANNED:
            names = list(dict.fromkeys(PARAMETER.findall(text)))
            with engine.connect() as connection:
                plans[name] = EXPLAIN[dialect](connection.connection.driver_connection, text, names)
    return plans


def _explained_by_sqlite(driver: Any, text: str, names: list[str]) -> list[str]:
    text, values = _spread(text, names, ":{}")
    depths = {0: -1}
    lines = []
    for number, parent, _unused, detail in driver.execute(f"EXPLAIN QUERY PLAN {text}", values):
        depths[number] = depths[parent] + 1
        lines.append("  " * depths[number] + detail)
    return lines


def _explained_by_postgresql(driver: Any, text: str, names: list[str]) -> list[str]:
    """Return the plan that the server keeps for a prepared statement, with the rows that each step read."""
    text = re.sub(r"IN \(:ids\)", "= ANY(:ids)", text)
    text = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    values = ", ".join(psycopg.sql.Literal(VALUES[name]).as_string(driver) for name in names)
    options = "ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF"
    with driver.cursor() as cursor:
        cursor.execute("BEGIN")
        for name, value in PLANNING.items():
            cursor.execute(f"SET LOCAL {name} = {value}")
        cursor.execute(f"PREPARE planned AS {text}")
        cursor.execute(f"EXPLAIN ({options}) EXECUTE planned({values})")
        lines = [row[0] for row in cursor.fetchall()]
        cursor.execute("ROLLBACK")
        cursor.execute("DEALLOCATE planned")
    return lines


def _explained_by_mariadb(driver: Any, text: str, names: list[str]) -> list[str]:
    text, values = _spread(text.replace("%", "%%"), names, "%({})s")
    values |= {name: str(value).encode() for name, value in values.items() if name in BINARY}
    with driver.cursor() as cursor:
        cursor.execute(f"EXPLAIN {text}", values)
        columns = [column[0] for column in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    shown = ("select_type", "table", "type", "key", "rows", "Extra")
    return ["  ".join(f"{name}={row[name]}" for name in shown if row[name]) for row in rows]


def _spread(text: str, names: list[str], form: str) -> tuple[str, dict[str, Any]]:
    """Return a statement with the driver's placeholders, and its values; of a list, the first one."""
    values = {name: VALUES[name] for name in names}
    values |= {name: value[0] for name, value in values.items() if isinstance(value, list)}
    return PARAMETER.sub(lambda found: form.format(found[1]), text), values


EXPLAIN: Final[Mapping[str, Callable[[Any, str, list[str]], list[str]]]] = {
    "sqlite": _explained_by_sqlite,
    "postgresql": _explained_by_postgresql,
    "mariadb": _explained_by_mariadb,
}


@contextmanager
def million(dialect: str) -> Iterator[sa.Engine]:
    """Yield an engine of a database with a table of a million rows."""
    with tempfile.TemporaryDirectory() as folder:
        if dialect == "sqlite":
            with _filled(dialect, f"sqlite:///{folder}/tasks.db") as engine:
                yield engine
            return
        with (
            (Postgres if dialect == "postgresql" else MariaDB)() as server,
            _filled(dialect, server.url) as engine,
        ):
            yield engine


@contextmanager
def _filled(dialect: str, url: str) -> Iterator[sa.Engine]:
    queue = Queue.sql(url)
    queue.create_table()
    queue.close()
    values = ", ".join(COLUMNS.values()).format(**TEXTS[dialect])
    engine = sa.create_engine(parsed_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        into = f"INSERT INTO tasks ({', '.join(COLUMNS)})"
        connection.exec_driver_sql(f"{into} SELECT {values} FROM {SERIES[dialect]}")
        if dialect in ANALYZE:
            connection.exec_driver_sql(ANALYZE[dialect])
    yield engine
    engine.dispose()


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for dialect in DIALECTS:
        file = FOLDER / f"{dialect}.sql"
        plans = plans_of(file.read_text("utf-8")) if file.exists() else {}
        if "--text" not in sys.argv[1:]:
            with million(dialect) as engine:
                plans = measured_plans(dialect, engine)
        file.write_text(page(dialect, plans), "utf-8")


if __name__ == "__main__":
    main()
