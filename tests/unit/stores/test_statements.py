"""Statements: most are text; docs/contributing/sql has those that are built."""

import json
import re
from contextlib import nullcontext
from importlib.resources import files
from typing import Any

import pytest
import sqlalchemy as sa
from local.pages import DIALECTS, SQL_FOLDER, sql_page

from freshq import Queue
from freshq.queue.core import claim_request, core_of
from freshq.stores.lines import Choice
from freshq.stores.sql import SqlStore, migrations
from freshq.stores.sql.migrations import PutFunction
from freshq.stores.sql.rows import COLUMNS, NEW_COLUMNS, row_of
from freshq.stores.sql.schema import schema
from freshq.stores.sql.statements import HEAD, PARAMETER, TextStatements
from freshq.stores.sql.tasks import PutStatements

PARTS = {
    *("tasks", "records", "columns"),
    *("taken", "no_better_line", "seen", "wanted", "span", "past", "out_of_line", "running"),
    *(
        "float_1",
        "default_value",
        "never_us",
        "waiting",
        "is_stale",
        "is_shed",
        "reason",
        "worth",
        "delivered",
    ),
    *("valued", "aside", "counts", "history", "histories", "locked", "skip_locked", "by_key", "queue_by_id"),
    *("first_past", "no_batch"),
}


def of(dialect: str, table: str = "tasks") -> TextStatements:
    return TextStatements(schema(table, dialect), DIALECTS[dialect])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_file_of_a_dialect_has_the_statements_of_the_code(dialect: str) -> None:
    assert (SQL_FOLDER / f"{dialect}.sql").read_text("utf-8") == sql_page(dialect), "run make sql-statements"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_statement_stands_in_two_files(dialect: str) -> None:
    folder = files("freshq.stores.sql")
    names = ("claim.sql", f"claim.{dialect}.sql", "counts.sql", "tasks.sql", "records.sql")
    each = [HEAD.findall(folder.joinpath(name).read_text("utf-8")) for name in names]
    assert all(each)
    assert len({name for found in each for name in found}) == sum(map(len, each))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_complete(dialect: str) -> None:
    statements = of(dialect)
    for name in statements.texts.keys() - PARTS:
        for newest_first in (False, True):
            text = statements.text(name, newest_first)
            assert re.match(r"(SELECT|WITH|UPDATE|INSERT|DELETE)\b", text), name
            assert not re.search(r"[{}]|--", text), name
            assert str(statements.statement(name, newest_first))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_order_of_a_line_is_the_only_difference_between_two_statements(dialect: str) -> None:
    statements = of(dialect)
    newest, oldest = (statements.text("shown", newest_first) for newest_first in (True, False))
    assert newest != oldest
    assert newest.replace(" DESC", " ") == oldest


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("table", ["tasks", "Order", "_1", "a" * 40])
def test_statements_quote_the_name_of_the_table_if_it_needs_that(dialect: str, table: str) -> None:
    quoted = DIALECTS[dialect].identifier_preparer.quote(table)
    for name in ("lines", "shown", "take", "leave_lines"):
        assert re.search(rf"(FROM|UPDATE|JOIN) {re.escape(quoted)}\s", of(dialect, table).text(name)), name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_claim_selects_the_columns_of_a_task_in_the_order_in_which_rows_are_read(dialect: str) -> None:
    columns = of(dialect).texts["columns"].replace("CAST(payload AS BLOB) AS payload", "payload")
    assert columns == ", ".join(COLUMNS)


def test_only_a_statement_that_returns_rows_is_read() -> None:
    statements = of("sqlite")
    kinds = {name: statements.ready(name) for name in ("lines", "take_lines", "add_record")}
    read = {name: (each.only_reads, each.returns_rows) for name, each in kinds.items()}
    assert read == {"lines": (True, True), "take_lines": (False, True), "add_record": (False, False)}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("table", "quoted"), [("tasks", "tasks"), ("Order", '"Order"')])
def test_a_copy_names_every_column_that_a_new_task_may_set(dialect: str, table: str, quoted: str) -> None:
    tables = schema(table, dialect)
    copy_of = PutStatements(tables, DIALECTS["postgresql"]).copy_of
    left_out = {column.name for column in tables.tasks.columns} - {*NEW_COLUMNS}
    assert all(tables.tasks.c[name].nullable for name in left_out)
    queue = Queue.memory(order="value")
    core = core_of(queue)
    parent = {"task_id": "p", "root_id": "r", "deadline": 1e12, "group": "g"}
    new = {"payload": 1, "priority": 3, "kind": "k", "delay_seconds": 5, "value": 2, "decay": "linear"}
    queue.put("decides about the options")
    for arguments in (
        {"payload": None},
        new | {"parent": parent, "trace_context": f"00-{'1' * 32}-{'2' * 16}-01"},
    ):
        task = core.rules.lifecycle.created(core.parse(arguments), 1000.0, 1000.0)
        row, copy = row_of(task), copy_of([task])
        assert (copy.table, copy.statement) == (
            quoted,
            f"COPY {quoted} ({', '.join(NEW_COLUMNS)}) FROM STDIN",
        )
        assert [dict(zip(NEW_COLUMNS, each, strict=True)) for each in copy.rows()] == [
            {name: row[name] for name in NEW_COLUMNS}
        ]
        assert {row[name] for name in left_out} == {None}


def test_values_that_mariadb_compares_with_keys_are_bytes() -> None:
    ready = of("mariadb").ready("lines")
    given = ready.arguments({"of_queue": "\u00e9", "of_after": "", "of_until": ":", "count": 3})
    assert given == {"of_queue": b"\xc3\xa9", "of_after": b"", "of_until": b":", "count": 3}


ABOVE, BELOW, ELSEWHERE = ("1", ":"), ("0", "0a"), ("2", "3")
# How many lines a claim chooses, in which ranges no line may be, and which statement takes from them.
TAKES = {
    "sqlite": [
        (1, (), "take_line"),
        (1, (ABOVE,), "take_line"),
        (1, (ABOVE, BELOW, ELSEWHERE), "take_line"),
        (2, (), "take_lines"),
        (2, (ABOVE,), "take_lines"),
    ],
    "postgresql": [
        (1, (), "take_lines"),
        (1, (ABOVE,), "take_line"),
        (1, (ABOVE, BELOW), "take_line"),
        (1, (ABOVE, BELOW, ELSEWHERE), "take_lines"),
        (2, (), "take_lines"),
        (2, (ABOVE,), "take_lines"),
    ],
}


@pytest.mark.parametrize("dialect", TAKES)
def test_one_line_has_a_statement_of_its_own(dialect: str) -> None:
    url = {"sqlite": "sqlite:///tasks.db", "postgresql": "postgresql://localhost/tasks"}[dialect]
    store = SqlStore(url)
    request = claim_request(core_of(Queue.memory()), 9, lease_seconds=30)
    for number, unless, expected in TAKES[dialect]:
        lines = {f"0{letter}": 1 for letter in "ab"[:number]}
        name, which = store._which(request, Choice(lines, newest_first=True, limit=9, unless=unless))
        assert name == expected
        own = {name for name in PARAMETER.findall(store.sql.text(name)) if name in which}
        assert own == which.keys()
        given = {each for value in which.values() for each in (value if isinstance(value, list) else [value])}
        assert {key for each in unless for key in each} <= given or which["unless"] == json.dumps(unless)
    store.close()


class Catalog:
    """Answers what the creation of a function asks of a database, and keeps what it creates.

    Attributes:
        created: The statements.
    """

    def __init__(self, found: list[str], error: Exception | None = None) -> None:
        self._found = found
        self._error = error
        self.created: list[str] = []

    def execute(self, statement: sa.TextClause, names: dict[str, str]) -> Any:
        self.asked = statement, names
        return self

    def scalars(self) -> Any:
        return self

    def all(self) -> list[str]:
        return self._found

    def begin_nested(self) -> Any:
        return nullcontext()

    def exec_driver_sql(self, text: str, execution_options: dict[str, bool] | None = None) -> None:
        assert text.startswith("SET ") or execution_options == {"no_parameters": True}
        if self._error is not None and text.startswith("CREATE"):
            raise self._error
        self.created.append(text)


class Denied(Exception):
    """PostgreSQL's error."""

    sqlstate = "42501"


def put_function(table: str = "tasks", dialect: str = "postgresql") -> PutFunction:
    place = "public." if dialect == "postgresql" else ""
    return PutFunction(schema(table, dialect), DIALECTS[dialect], place)


def create(found: list[str], error: Exception | None = None, dialect: str = "postgresql") -> Catalog:
    catalog: Any = Catalog(found, error)
    put_function(dialect=dialect).create(catalog)
    return catalog  # type: ignore[no-any-return]


def test_the_function_that_puts_names_its_table_and_every_limit() -> None:
    texts = put_function("Jobs").texts()
    assert len(texts) == 3
    for text in texts:
        assert text.startswith('CREATE OR REPLACE FUNCTION public."freshq_put_Jobs"(queue text, payload ')
        assert not re.search(r"\{[a-z]", text)
    assert 'INSERT INTO public."Jobs" (task_id, ' in texts[0]
    assert 'INSERT INTO public."Jobs_records" ' in texts[0]
    assert "'task_id: %s bytes, at most 1024 are allowed; shorten it'" in texts[0]
    assert put_function().texts()[0].startswith("CREATE OR REPLACE FUNCTION public.freshq_put(")


def test_the_function_is_created_unless_it_is_there() -> None:
    texts = put_function().texts()
    other = [text.replace("-- freshq ", "-- freshq 0") for text in texts]
    for found, created in (([], texts), (texts, []), (texts[:2], texts), (other, texts), (["SELECT 5"], [])):
        catalog = create(found)
        assert catalog.created == created
        assert catalog.asked == (
            migrations.FUNCTIONS["postgresql"],
            {"of_name": "freshq_put", "of_place": "public."},
        )


def test_a_function_of_another_version_is_outdated() -> None:
    texts = put_function().texts()
    for found, outdated in (
        ([], False),
        (texts, False),
        (["SELECT 5"], False),
        ([*texts, "-- freshq 0"], True),
    ):
        catalog: Any = Catalog(found)
        assert put_function().is_outdated(catalog) is outdated


def test_the_function_of_mariadb_is_created_in_a_strict_mode() -> None:
    (text,) = put_function(dialect="mariadb").texts()
    assert text.startswith("CREATE OR REPLACE FUNCTION freshq_put(")
    assert not re.search(r"\{[a-z]", text.replace("\\\\{", ""))
    strict, *created, restored = create([], dialect="mariadb").created
    assert created == [text]
    assert strict == "SET @freshq_sql_mode = @@sql_mode, sql_mode = 'STRICT_ALL_TABLES'"
    assert restored == "SET sql_mode = @freshq_sql_mode"
    version = re.search("-- freshq [0-9a-f]+", text)
    assert version is not None
    assert create([version[0]], dialect="mariadb").created == []


@pytest.mark.parametrize("number", [1044, 1227, 1370, 1418, 1419])
def test_mariadb_without_the_right_to_create_the_function(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    error = sa.exc.OperationalError("", {}, Exception(number, "no"))
    assert [text[:4] for text in create([], error, "mariadb").created] == ["SET ", "SET "]
    assert caplog.messages == [
        f"function freshq_put: not created (({number}, 'no')); only SQL that puts tasks needs it"
    ]


def test_only_a_missing_right_to_create_the_function_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    create([], sa.exc.ProgrammingError("", {}, Denied("denied\nto you")))
    assert caplog.messages == [
        "function freshq_put: not created (denied to you); only SQL that puts tasks needs it"
    ]
    with pytest.raises(sa.exc.ProgrammingError):
        create([], sa.exc.ProgrammingError("", {}, ValueError()))


def test_the_messages_of_the_function_are_those_of_the_library() -> None:
    for name, arguments in migrations.BROKEN.items():
        field = next(iter(arguments))
        assert migrations.refusal(arguments).startswith(f"{field}: "), name
    assert migrations.refusal({"group": "x" * 257}) == "group: %s bytes, at most 256 are allowed; shorten it"
    assert migrations.refusal({"name": ""}).startswith("name: string should match")
    assert migrations.refusal({"max_age_seconds": 1e9}) == "max_age_seconds: must be at most the queue's %s"
    with pytest.raises(AssertionError, match="would accept"):
        migrations.refusal({"priority": 1})


LITERALS = {5: "5", 0.5: "0.5", "it's": "'it''s'", "\\d'": "E'\\\\d'''"}


@pytest.mark.parametrize(("value", "text"), LITERALS.items())
def test_literals(value: object, text: str) -> None:
    assert migrations.literal(value) == text
    assert migrations.literal(value, "mariadb") == text.removeprefix("E")
