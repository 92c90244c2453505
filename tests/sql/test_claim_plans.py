"""The plans of the statements of claims, on many rows: what the comments in `claim*.sql` say."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa
from local.servers import Server

from freshq.stores.lines import END
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.statements import LIST, PARAMETER

# A name that must be quoted.
TABLE: Final = "Select"
ROWS: Final = 30_000
WAITING_ROWS: Final = 9_000
FAR_US: Final = 4_000_000_000_000_000
# Of each ten tasks, three wait in three lines, one runs, and six have ended.
COLUMNS: Final = {
    "task_id": "{id}",
    "queue": "'default'",
    "status": f"CASE WHEN n <= {WAITING_ROWS} THEN 'PENDING' WHEN n <= 12000 THEN 'TAKEN' ELSE 'SUCCESS' END",
    "created_us": "n",
    "updated_us": "n",
    "deadline_us": str(FAR_US),
    "expires": str(FAR_US // 1_000_000),
    "request_token": "'token'",
    "put_token": "'token'",
    "priority": "0",
    "task_group": "{group}",
    "attempts": "0",
    "line": f"CASE WHEN n <= {WAITING_ROWS} THEN {{line}} END",
    "agenda": f"CASE WHEN n <= {WAITING_ROWS} THEN 'stale' WHEN n <= 12000 THEN 'due' ELSE 'over' END",
    "due_us": f"{FAR_US} + n",
    "payload": "'1'",
}
SERIES: Final = {
    "sqlite": f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS}) "
    "SELECT n FROM s) AS numbers",
    "postgresql": f"generate_series(1, {ROWS}) AS numbers(n)",
    "mariadb": f"(SELECT seq AS n FROM seq_1_to_{ROWS}) AS numbers",
}
TEXTS: Final = {
    "sqlite": {"id": "printf('task-%07d', n)", "line": "'0' || (n % 3)", "group": "'' || (n % 3)"},
    "postgresql": {
        "id": "'task-' || lpad(n::text, 7, '0')",
        "line": "'0' || (n - 3 * (n / 3))",
        "group": "'' || (n - 3 * (n / 3))",
    },
    "mariadb": {
        "id": "CONCAT('task-', LPAD(n, 7, '0'))",
        "line": "CONCAT('0', MOD(n, 3))",
        "group": "CONCAT('', MOD(n, 3))",
    },
}
# The parameters of a claim of one task. No line is in the ranges.
RANGES: Final = [["00\x01", "01"], ["02\x01", END]]
VALUES: Final = {
    "of_queue": "default",
    "of_line": "01",
    "of_after": "",
    "of_until": END,
    "of_ids": ["task-0000001"],
    "of_names": ["1", "2"],
    "of_name": "record",
    "of_first": "1",
    "of_last": "2",
    "count": 65,
    "page": 10,
    "from_us": 0,
    "agenda": "stale",
    "wanted": json.dumps([["00", 1], ["01", 1]]),
    "most": 1,
    "wanted_line": ["00", "01"],
    "wanted_count": [1, 1],
    "span_line": ["00", "01"],
    "span_after_us": [0, 0],
    "span_before_us": [FAR_US, FAR_US],
    "unless": json.dumps(RANGES),
    "unless_first": [first for first, _ in RANGES],
    "unless_until": [until for _, until in RANGES],
    "first_1": RANGES[0][0],
    "until_1": RANGES[0][1],
    "first_2": RANGES[1][0],
    "until_2": RANGES[1][1],
    "created_after_us": 0,
    "created_before_us": FAR_US,
    "deadline_after_us": 0,
    "looked": 65,
    "of_full_kinds": ["full"],
    "at_most": 1,
    "now_us": 1,
    "token": "worker:token",
    "version": "version",
    "earlier_version": "version",
    "record": "{}",
    "lease_from_us": 1,
    "lease_until_us": 2,
    "new_expires": FAR_US // 1_000_000,
    "lock_id": 1,
}

# What statements read: indexes, with the columns by which they are searched, and places (ctid).
LINES: Final = "lines(queue, line)"
LINE: Final = "lines(queue, line, created_us)"
DUE: Final = "agenda(agenda, queue, due_us)"
RUNNING: Final = "running(queue, task_group)"
READS: Final[dict[str, dict[str, list[str]]]] = {
    "sqlite": {
        "lines": [LINES, LINES],
        "last_line": [LINES],
        "oldest_of_line": [LINE],
        "heads": [LINE],
        "first_to_expire": [DUE],
        "take_line": ["key(task_id, queue)", LINES, LINE],
        "take_lines": ["key(task_id, queue)", LINES, LINE],
        "taken_earlier": [DUE],
        "shown": ["key(task_id, queue)", LINE],
        "page": ["key(task_id, queue)", LINE],
        "found": ["key(task_id, queue)"],
        "found_locked": ["key(task_id, queue)"],
        "take": ["key(task_id, queue)"],
        "any_past": [DUE],
        "leave_lines": [DUE, "key(task_id, queue)"],
        "running_by_group": [RUNNING],
        "running_of_groups": ["USE TEMP B-TREE FOR GROUP BY", RUNNING],
        "running_between": [RUNNING],
        "lock_record": ["key(queue, name)"],
        "add_record": [],
        "change_record": ["key(queue, name)"],
    },
    "postgresql": {
        "lines": [LINES, LINES],
        "last_line": [LINES],
        "oldest_of_line": [LINE],
        "heads": [LINE],
        "first_to_expire": [DUE],
        "take_line": [LINES, LINES, LINE, "place"],
        "take_lines": [LINES, LINE, "place", "place"],
        "best": [LINE, "place"],
        "taken_earlier": [DUE],
        "shown": [LINE, "place"],
        "page": [LINE, "place"],
        "found": ["key(task_id)"],
        "found_locked": ["key(task_id)"],
        "take": ["key(task_id)"],
        "leave_lines": [DUE, "place"],
        "keep_others_out": [],
        "running_by_group": ["running(queue)"],
        "running_of_groups": [RUNNING],
        "running_between": [RUNNING],
        "lock_record": ["key(queue, name)"],
        "add_record": [],
        "change_record": ["key(queue, name)"],
    },
    # MariaDB tells no columns, and what it reads of a record that is not there.
    "mariadb": {
        "lines": ["lines", "lines"],
        "last_line": ["lines"],
        "oldest_of_line": ["lines"],
        "heads": ["lines"],
        "first_to_expire": ["agenda"],
        "shown": ["key", "lines"],
        "page": ["key", "lines"],
        "found": ["key"],
        "found_locked": ["key"],
        "take": ["key"],
        "any_past": ["agenda"],
        "stale": ["agenda", "key"],
        "leave_lines": ["key"],
        "taken_earlier": ["agenda"],
        "running_by_group": ["agenda"],
        "running_of_groups": ["agenda"],
        "running_between": ["agenda"],
        "lock_record": [],
        "add_record": [],
        "change_record": ["key"],
    },
}
# These count all running tasks, or those of groups; any other statement reads at most `MOST_ROWS`.
COUNTS: Final = ("running_by_group", "running_of_groups", "running_between")
MOST_ROWS: Final = 200


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[SqlStore]:
    """Return a store with many tasks."""
    yield from filled(sqlite_url)


@pytest.fixture
def postgres_store(postgres_server: Server, postgres_at_rest: sa.Engine) -> Iterator[SqlStore]:
    """Return a store with many tasks, and without statistics."""
    assert postgres_at_rest.url.port == postgres_server.port
    yield from filled(postgres_server.url)


@pytest.fixture
def mariadb_store(mariadb_server: Server) -> Iterator[SqlStore]:
    """Return a store with many tasks."""
    yield from filled(mariadb_server.url)


def filled(url: str) -> Iterator[SqlStore]:
    engine = open_engine(url)
    store = SqlStore(engine, TABLE)
    store.create_table()
    dialect = engine.dialect.name
    table = engine.dialect.identifier_preparer.format_table(store.schema.tasks)
    values = ", ".join(COLUMNS.values()).format(**TEXTS[dialect])
    with engine.begin() as connection:
        into = f"INSERT INTO {table} ({', '.join(COLUMNS)})"
        connection.execute(sa.text(f"{into} SELECT {values} FROM {SERIES[dialect]}"))
    yield store
    with engine.begin() as connection:
        store.schema.metadata.drop_all(connection)
    engine.dispose()


def texts(store: SqlStore, name: str) -> list[str]:
    """Return the text of a statement; if it depends on the order of a line, both texts."""
    return sorted({store.sql.text(name, newest_first) for newest_first in (False, True)})


def reads(store: SqlStore, explain: Callable[[Any, str], list[str]]) -> dict[str, list[str]]:
    """Return what each statement reads; the same in both orders of a line."""
    found = {}
    with store.database.engine.connect() as connection:
        for name in READS[store.database.dialect]:
            plans = [sorted(explain(connection, text)) for text in texts(store, name)]
            assert plans == plans[:1] * len(plans), name
            found[name] = plans[0]
    return found


def columns_of(condition: str, pattern: str) -> str:
    return ", ".join(dict.fromkeys(re.findall(pattern, condition)))


def index_of(name: str) -> str:
    """Return the name of an index without that of its table."""
    is_key = "autoindex" in name or name.endswith("pkey") or name == "PRIMARY"
    return "key" if is_key else name.removeprefix(f"{TABLE}_")


def with_lists(text: str) -> sa.TextClause:
    lists = LIST.findall(text)
    names = set(PARAMETER.findall(text))
    return sa.text(text).bindparams(*(sa.bindparam(name, expanding=name in lists) for name in names))


def test_on_sqlite(sqlite_store: SqlStore) -> None:
    def explain(connection: sa.Connection, text: str) -> list[str]:
        found = []
        for row in connection.execute(with_lists(f"EXPLAIN QUERY PLAN {text}"), VALUES):
            searched = re.fullmatch(r"SEARCH \S+ USING (?:COVERING )?INDEX (\S+) \((.+)\)", row.detail)
            if searched:
                columns = columns_of(searched[2], r"(\w+)[<>=]+")
                found.append(f"{index_of(searched[1])}({columns})")
            elif TABLE in row.detail or "TEMP" in row.detail:
                found.append(row.detail)
        return found

    assert reads(sqlite_store, explain) == READS["sqlite"]


def test_on_postgresql_without_statistics(postgres_store: SqlStore) -> None:
    most_rows = {}

    def explain(connection: sa.Connection, text: str) -> list[str]:
        """Return what the plan reads that the server keeps for a prepared statement."""
        names = list(dict.fromkeys(PARAMETER.findall(text)))
        numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        driver: Any = connection.connection.driver_connection
        values = ", ".join(psycopg.sql.Literal(VALUES[name]).as_string(driver) for name in names)
        with driver.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"PREPARE planned AS {numbered}")
            given = f"({values})" if values else ""
            cursor.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE planned{given}")
            lines = [row[0] for row in cursor.fetchall()]
            cursor.execute("ROLLBACK")
            cursor.execute("DEALLOCATE planned")
        most_rows[text] = max(float(rows) for rows in re.findall(r"actual rows=([\d.]+)", "".join(lines)))
        found = ["place" for line in lines if "Tid Scan" in line]
        found += [line for line in lines if re.search("Seq Scan|Bitmap|Sort", line)]
        for line, condition in pairwise(lines):
            if index := re.search(r'Index (?:Only )?Scan (?:Backward )?using "(\w+)"', line):
                columns = columns_of(condition, r"\((\w+)\)?(?:::\w+)? [<>=]+ ")
                found.append(f"{index_of(index[1])}({columns})")
        return found

    assert reads(postgres_store, explain) == READS["postgresql"]
    counts = [text for name in COUNTS for text in texts(postgres_store, name)]
    assert {text: rows for text, rows in most_rows.items() if rows > MOST_ROWS and text not in counts} == {}


def test_on_mariadb(mariadb_store: SqlStore) -> None:
    def explain(connection: sa.Connection, text: str) -> list[str]:
        rows = connection.execute(with_lists(f"EXPLAIN {text}"), VALUES).mappings().all()
        sorts = [row["Extra"] for row in rows if "filesort" in (row["Extra"] or "")]
        return sorts + [index_of(row["key"]) for row in rows if row["key"]]

    found = reads(mariadb_store, explain)
    for name in ("running_by_group", "running_of_groups"):  # grouped after they are found
        found[name] = [each for each in found[name] if "filesort" not in each]
    assert found == READS["mariadb"]
