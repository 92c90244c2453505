"""`freshq_put`, by which SQL puts tasks, does what `Queue.put` does: the same rows, the same refusals."""

import inspect
import itertools
import json
import math
import re
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import mysql

from freshq import NewTask, Queue
from freshq.model.fields import FIELDS, NEVER, FieldType
from freshq.model.validation import MAX_JSON_DEPTH, MAX_PAYLOAD_BYTES
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.listening import channel_of
from freshq.stores.sql.migrations import IN_OBJECT, PutFunction
from freshq.stores.sql.schema import PayloadText, schema
from freshq.stores.sql.statements import parts_of
from tests.support.patience import PATIENCE_SECONDS

TIMES: Final = {field.column for field in FIELDS if field.kind is FieldType.TIME} | {"due_us"}
# Name the write.
NAMES: Final = ("request_token", "put_token")
YEAR_SECONDS: Final = 365 * 86_400.0
TRACEPARENT: Final = f"00-{'1a' * 16}-{'2b' * 8}-01"
# Generated puts: with --all, and without.
EXAMPLES: Final = 2_000
FEW_EXAMPLES: Final = 200
# Of MariaDB's function: where it keeps escapes, and its refusal of arguments that JSON cannot express.
MAX_UNESCAPED_BYTES: Final = 60_000
NO_OBJECT: Final = "arguments: must be a JSON object or NULL"
# The options of the queues.
QUEUES: Final[Mapping[str, dict[str, Any]]] = {
    "usual": {},
    "patient": {"max_age_seconds": None, "retention_seconds": 0.5},
    "short": {"max_age_seconds": 0.75, "order": "fifo"},
    "dear": {"order": "value"},
    "dear-patient": {"order": "value", "max_age_seconds": None},
    "urgent": {"order": "deadline", "max_age_seconds": 100_000.0},
}
numbers: Final = itertools.count()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> sa.Engine:
    """Return an engine of PostgreSQL, or of the database that a test names."""
    engine: sa.Engine = request.getfixturevalue(f"{getattr(request, 'param', 'postgres')}_engine")
    return engine


on_both: Final = pytest.mark.parametrize("engine", ["postgres", "mariadb"], indirect=True)


def call(connection: sa.Connection, queue: str, payload: str | None, **arguments: Any) -> tuple[str, str]:
    """Put by the function; return the id and the outcome."""
    if connection.dialect.name == "mariadb":
        times = {name: value.timestamp() for name, value in arguments.items() if isinstance(value, datetime)}
        given = {"queue": queue, "payload": payload, "others": json.dumps(arguments | times)}
        text = connection.execute(sa.text("SELECT freshq_put(:queue, :payload, :others)"), given).scalar_one()
        return json.loads(text)["task_id"], json.loads(text)["outcome"]
    named = "".join(f', "{name}" => :{name}' for name in arguments)
    statement = sa.text(f"SELECT task_id, outcome FROM public.freshq_put(:queue, :payload{named})")
    answer = connection.execute(statement, {"queue": queue, "payload": payload} | arguments).one()
    return answer.task_id, answer.outcome


def put(engine: sa.Engine, queue: str, payload: str | None, **arguments: Any) -> tuple[str, str]:
    """Put by the function in a transaction of its own."""
    with engine.begin() as connection:
        return call(connection, queue, payload, **arguments)


def taken_row(engine: sa.Engine, task_id: str) -> dict[str, Any]:
    """Return the row of a task, and delete it."""
    tasks = schema("tasks", engine.dialect.name).tasks
    with engine.begin() as connection:
        row = connection.execute(sa.select(tasks).where(tasks.c.task_id == task_id)).mappings().one()
        connection.execute(tasks.delete())
    return dict(row)


def comparable(row: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the names of writes, with times counted from the put unless `at` decides them.

    In payloads, the library escapes letters beyond U+FFFF for MariaDB, where the function has them as given.
    """
    shown = {name: value for name, value in row.items() if name not in NAMES}
    shown["payload"] = PayloadText().process_bind_param(row["payload"], mysql.dialect())
    assert row["put_token"] == f"c{row['request_token']}"
    assert re.fullmatch("[0-9a-f]{32}", row["request_token"])
    if arguments.get("task_id") is None:
        assert re.fullmatch(
            "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", row["task_id"]
        )
        del shown["task_id"]
    own = {"updated_us", "put_us"}
    if arguments.get("at") is None:
        own = TIMES
        if row["expires"] < NEVER:
            shown["expires"] -= row["put_us"] / 1e6  # in whole seconds, and the two puts are at two times
    return {
        name: value - row["put_us"] if name in own and value is not None and value < NEVER * 1e6 else value
        for name, value in shown.items()
    }


def assert_same(library: dict[str, Any], function: dict[str, Any]) -> None:
    """Compare rows. Seconds that are no whole microseconds may be rounded otherwise."""
    near = {*TIMES, "expires"}
    exact = {name: value for name, value in library.items() if name not in near}
    assert {name: value for name, value in function.items() if name not in near} == exact
    for name in near:
        ours, theirs = library[name], function[name]
        allowed = {"due_us": 1_000_001, "expires": 1.00001}.get(name, 1)
        assert ours == theirs or abs(ours - theirs) <= allowed, name


def refusal_of(error: Exception) -> str:
    """Return the message of a refusal without the value, with numbers as the library writes them."""
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    text = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause.args[-1])
    text = text.partition(", got ")[0]
    return "payload: not a JSON value" if text.startswith("payload: not a JSON") else text.removesuffix(".0")


def texts(longest: int) -> st.SearchStrategy[str | None]:
    usual = st.text(max_size=12) | st.sampled_from(
        ["", "\x01", "\x01x", "it's \\ %s {x}", "a\0b", "\ud800", "٣ "]
    )
    return st.none() | usual | st.sampled_from(["x" * longest, "x" * (longest + 1), "é" * (longest // 2 + 1)])


def seconds(*also: float) -> st.SearchStrategy[float]:
    odd = [0, -0.0, -1, 1e-9, math.nan, math.inf, -math.inf, 1e300, 101 * YEAR_SECONDS, 100 * YEAR_SECONDS]
    return st.floats(0, 5_000) | st.integers(0, 5_000) | st.sampled_from([*odd, *also])


def nested(levels: int) -> Any:
    value: Any = 0
    for level in range(levels):
        value = [value] if level % 3 else {"a": value, "b": []}
    return value


leaves: Final = st.one_of(
    *(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.text('\0\ud800\\"/ \n\tab\x7fé😀[]{}'),
    ),
    st.sampled_from([10**308, 10**4299, 1e-320, 1.7976931348623157e308, -0.0]),
)
payloads: Final[st.SearchStrategy[Any]] = st.one_of(
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=8,
    ),
)
arguments: Final = st.fixed_dictionaries(
    {"payload": payloads},
    optional={
        "task_id": texts(1024) | st.sampled_from(["freshq#options", "freshq:mail#1", "freshq", "Freshq#1"]),
        "priority": st.integers(0, 9) | st.sampled_from([-1, 10, 0.5, None, 10**30, math.nan, math.inf]),
        "delay_seconds": seconds() | st.none(),
        "at": st.none()
        | st.sampled_from(
            [datetime(1970, 1, 1, tzinfo=UTC), datetime(2020, 2, 29, 1, 2, 3, 456_789, tzinfo=UTC)]
        )
        | st.sampled_from([datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1969, 2100, 2200, 9999)]),
        "max_age_seconds": seconds(3600, 3600.000001, 0.75, 0.5, 2**10) | st.none(),
        "group": texts(256),
        "kind": texts(256),
        "value": st.none()
        | st.floats(1e-6, 1e12)
        | st.sampled_from(
            [0, 1, 1e-6, 9e-7, 1e12, 1.1e12, math.nan, math.inf, *(2.0**power for power in range(-19, 39))]
        ),
        "decay": st.sampled_from([None, "step", "linear", "LINEAR", ""]),
        "cost": st.none() | st.floats(1e-6, 1e9) | st.sampled_from([0, 1, 1e-6, 9e-7, 1e9, 1.1e9, math.inf]),
        "trace_context": st.sampled_from(
            [
                *(
                    None,
                    "",
                    "00-1",
                    TRACEPARENT,
                    f"{TRACEPARENT} a=b,c=d",
                    f"{TRACEPARENT} ",
                    f"{TRACEPARENT}x",
                ),
                *(
                    TRACEPARENT.upper(),
                    f"{TRACEPARENT} é",
                    f"{TRACEPARENT} \n",
                    f"{TRACEPARENT}\n",
                    f"ff{TRACEPARENT[2:]}",
                ),
                *(f"{TRACEPARENT} {'x' * 512}", f"{TRACEPARENT} {'x' * 513}", f"00-{'0' * 32}-{'1' * 16}-01"),
            ]
        ),
    },
)
# JSON as programs in other languages may write it.
forms: Final = st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 1}, {"separators": (",", ":")}])


@pytest.fixture
def queues(engine: sa.Engine) -> dict[str, Queue]:
    """Return queues of each kind of options, which are stored."""
    opened = {name: Queue(SqlStore(engine), name=name, **options) for name, options in QUEUES.items()}
    for queue in opened.values():
        queue.put("first")
        queue.purge(confirm=queue.name)
    with engine.begin() as connection:
        connection.execute(schema("tasks", engine.dialect.name).tasks.delete())
    return opened


def by_library(queue: Queue, engine: sa.Engine, given: dict[str, Any]) -> dict[str, Any] | ValueError:
    """Put by the library; return the row, or the refusal."""
    try:
        return taken_row(engine, queue.put(**given).task_id)
    except ValueError as refused:
        return refused


def compare(queue: Queue, engine: sa.Engine, given: dict[str, Any], form: dict[str, Any]) -> None:
    """Put by the library and by the function, and compare."""
    others = {name: value for name, value in given.items() if name != "payload"}
    text = json.dumps(given["payload"], **form)
    if len(text) > MAX_UNESCAPED_BYTES and engine.dialect.name == "mariadb":
        text = json.dumps(given["payload"], ensure_ascii=False)
    expected = by_library(queue, engine, given)
    if isinstance(expected, ValueError):
        # A driver refuses NUL and surrogates before the server can.
        with pytest.raises((sa.exc.DBAPIError, ValueError)) as refusal:
            put(engine, queue.name, text, **others)
        if isinstance(refusal.value, sa.exc.DBAPIError) and is_own(refusal.value):
            if refusal_of(refusal.value) == NO_OBJECT:
                assert any(sign in repr(others) for sign in ("\\ud800", "nan", "inf"))
                return
            # MariaDB's checks the types first.
            is_type = engine.dialect.name == "mariadb" and "input should be a valid " in str(refusal.value)
            assert is_type or refusal_of(refusal.value) == refusal_of(expected)
        else:
            assert any(sign in repr(given) for sign in ("\\x00", "\\ud800"))
        return
    task_id, outcome = put(engine, queue.name, text, **others)
    assert outcome == "CREATED"
    assert_same(comparable(expected, others), comparable(taken_row(engine, task_id), others))


def is_own(error: sa.exc.DBAPIError) -> bool:
    """Return whether the function refused, not the driver or the server."""
    orig: Any = error.orig
    return getattr(orig, "sqlstate", None) == "22023" or orig.args[0] == 1644


@on_both
def test_the_function_puts_as_the_library(
    engine: sa.Engine, queues: dict[str, Queue], pytestconfig: pytest.Config
) -> None:
    @settings(
        max_examples=EXAMPLES if pytestconfig.getoption("all") else FEW_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.sampled_from([*QUEUES]), arguments, forms)
    @example("usual", {"payload": {"to": 1}, "priority": 5, "max_age_seconds": 60}, {})
    def run(name: str, given: dict[str, Any], form: dict[str, Any]) -> None:
        compare(queues[name], engine, given, form)

    run()


# Payloads at the limits, as text.
LIMITS: Final = (
    *(json.dumps("x" * (MAX_PAYLOAD_BYTES - 1 - more)) for more in range(3)),
    *(json.dumps("é" * ((MAX_PAYLOAD_BYTES - more) // 2)) for more in range(4)),
    *(json.dumps(["\0é\n" * (MAX_PAYLOAD_BYTES // size)], indent=2) for size in (9, 11)),
    *(json.dumps(nested(levels)) for levels in (MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1, 500)),
    json.dumps([[]] * 200),
    *("[" * levels + "]" * levels for levels in (MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1)),
    *(
        "1" * 4300,
        "-" + "1" * 4300,
        "[1e308, 1E+308, 17976931348623157e291]",
        '"1e999"',
        "1e-999",
        "[0.1e0001]",
    ),
)


@on_both
@pytest.mark.parametrize("text", LIMITS, ids=range(len(LIMITS)))
def test_payloads_at_the_limits(engine: sa.Engine, queues: dict[str, Queue], text: str) -> None:
    if engine.dialect.name == "mariadb":
        text = json.dumps(json.loads(text), ensure_ascii=False)  # it keeps the escapes of a large payload
    expected = by_library(queues["usual"], engine, {"payload": json.loads(text)})
    if isinstance(expected, ValueError):
        with pytest.raises(sa.exc.DBAPIError) as refusal:
            put(engine, "usual", text)
        assert refusal_of(refusal.value) == refusal_of(expected)
    else:
        task_id, _outcome = put(engine, "usual", text)
        assert json.loads(taken_row(engine, task_id)["payload"]) == json.loads(expected["payload"])


# Texts that no library can put: Python could not read them, or not as JSON has them.
NO_JSON: Final = (
    "",
    "[1",
    "NaN",
    "Infinity",
    "{'a': 1}",
    "1e309",
    "-1e400",
    "1" * 4301,
    '"\\ud800 \\u0000"',
    "[" * 100_000,
)


@on_both
@pytest.mark.parametrize("text", NO_JSON, ids=range(len(NO_JSON)))
def test_payloads_that_are_no_json(engine: sa.Engine, text: str) -> None:
    with pytest.raises(sa.exc.DBAPIError) as refusal:
        put(engine, "usual", text)
    assert refusal_of(refusal.value) == "payload: not a JSON value"


# Verbs that leave a task of the id "a" in each state, and the age of the queue's tasks.
STATES: Final = ("free", "waiting", "delayed", "running", "followed", "done", "cancelled", "stale")


def prepare(queue: Queue, state: str) -> None:
    """Put a task in a state."""
    if state == "free":
        return
    states: dict[str, Any] = {"delayed": {"delay_seconds": 60}, "stale": {"max_age_seconds": 1e-9}}
    options = states.get(state, {})
    queue.put({"a": 1, "b": 2.0}, task_id="a", **options)
    if state == "cancelled":
        queue.cancel("a")
    if state in ("running", "followed", "done"):
        (claim,) = queue.claim()
        if state == "followed":
            queue.put("newer", task_id="a", on_conflict="after")
        if state == "done":
            queue.complete(claim, result="x")


OVER: Final[tuple[dict[str, Any], ...]] = (
    {},
    *({name: value} for name, value in {"priority": 3, "group": "g", "kind": "k", "value": 1.0}.items()),
    *(
        {"value": 2.0},
        {"decay": "step"},
        {"decay": "linear"},
        *({"cost": 1.0}, {"cost": 2.5}),
        {"delay_seconds": 30.0},
        {"payload": {"b": 2, "a": 1.0}},
    ),
    *({"payload": "other"}, {"payload": "\0"}),
)


@on_both
@pytest.mark.parametrize("on_conflict", [None, "ignore", "update"])
@pytest.mark.parametrize("state", STATES)
def test_a_put_over_a_task_is_that_of_the_library(engine: sa.Engine, state: str, on_conflict: Any) -> None:
    queue = Queue(SqlStore(engine))
    for over in OVER:
        given = {"payload": {"a": 1, "b": 2.0}, "task_id": "a", **over}
        others = {name: value for name, value in given.items() if name != "payload"}
        prepare(queue, state)
        expected: Any = queue.put(**given, on_conflict=on_conflict).outcome
        row = taken_row(engine, "a")
        prepare(queue, state)
        _id, outcome = put(engine, "default", json.dumps(given["payload"]), **others, on_conflict=on_conflict)
        assert outcome == expected, over
        found = taken_row(engine, "a")
        assert found["put_token"][0::33] == row["put_token"][0::33], over
        if outcome != "DUPLICATE":
            for each in (row, found):
                each["put_token"] = f"c{each['request_token']}"
            assert_same(comparable(row, others), comparable(found, others))


@on_both
@pytest.mark.parametrize("on_conflict", ["after", "UPDATE", ""])
def test_other_conflicts_are_refused(engine: sa.Engine, on_conflict: str) -> None:
    with pytest.raises(sa.exc.DBAPIError) as refused:
        put(engine, "default", "1", task_id="a", on_conflict=on_conflict)
    assert refusal_of(refused.value) == "on_conflict: the function takes 'ignore' or 'update'"


# Arguments of `Queue.put` that the functions do not take, as docs/sql.md says.
ONLY_OF_LIBRARY: Final = ("parent", "debounce_max_seconds", "connection")


def test_the_functions_take_the_arguments_of_a_put_in_their_order() -> None:
    parameters = parts_of("put.postgresql.sql")["parameters"]
    of_postgresql = re.findall(r'^(?:INOUT )?"?(\w+)"? .* DEFAULT ', parameters, re.MULTILINE)
    of_put = [name for name in inspect.signature(Queue.put).parameters if name not in ("self", "payload")]
    assert {*of_put, "payload"} == {*NewTask.model_fields, "connection"}
    expected = [name for name in of_put if name not in ONLY_OF_LIBRARY]
    assert of_postgresql == expected
    assert list(IN_OBJECT) == expected


@pytest.mark.parametrize("kind", ["text", "varchar", "json", "jsonb"])
def test_every_type_of_json_is_a_payload(engine: sa.Engine, kind: str) -> None:
    with engine.begin() as connection:
        payload = f"""CAST('{{"to": [1, null]}}' AS {kind})"""
        text = f"SELECT task_id FROM public.freshq_put('default', {payload}, priority => 5)"
        task_id = connection.exec_driver_sql(text).scalar_one()
    task = Queue(SqlStore(engine)).get(task_id)
    assert task is not None
    assert (task.payload, task.priority) == ({"to": [1, None]}, 5)
    assert taken_row(engine, task_id)["payload"] == '{"to":[1,null]}'


def test_null_is_the_default_except_of_payload_priority_and_delay(engine: sa.Engine) -> None:
    optional = (
        "task_id",
        "at",
        "max_age_seconds",
        "group",
        "kind",
        "value",
        "decay",
        "trace_context",
        "on_conflict",
    )
    task_id, _outcome = put(engine, "default", "null", **dict.fromkeys(optional))
    assert taken_row(engine, task_id)["payload"] == "null"
    for field in ("payload", "priority", "delay_seconds", "queue"):
        given: dict[str, Any] = {"queue": "default", "payload": "1", field: None}
        with pytest.raises(sa.exc.DBAPIError, match=rf"\) {field}: "):
            put(engine, **given)
    assert Queue(SqlStore(engine)).list().tasks == ()


@on_both
@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "é", "mail\n", "'; --"])
def test_the_name_of_a_queue_is_checked(engine: sa.Engine, name: str) -> None:
    with pytest.raises(sa.exc.DBAPIError, match=r"queue: string should match pattern"):
        put(engine, name, "1")


@on_both
def test_a_new_queue_has_the_default_options(engine: sa.Engine) -> None:
    put(engine, "new", "1", max_age_seconds=3600)
    put(engine, "new", "2")
    with pytest.raises(sa.exc.DBAPIError, match="at most the queue's 3600, got 3601"):
        put(engine, "new", "1", max_age_seconds=3601)
    with pytest.raises(ValueError, match="order: queue 'new' has lifo by default"):
        Queue(SqlStore(engine), name="new", order="fifo").put(3)
    assert [claim.task.payload for claim in Queue(SqlStore(engine), name="new").claim(3)] == [2, 1]


@on_both
def test_the_options_of_the_earliest_note_hold(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        Queue(SqlStore(engine), name="noted", max_age_seconds=5.0).put(1, connection=connection)
        call(connection, "noted", "2", max_age_seconds=5)
        with (
            pytest.raises(sa.exc.DBAPIError, match="at most the queue's 5, got 6"),
            connection.begin_nested(),
        ):
            call(connection, "noted", "2", max_age_seconds=6)
    assert Queue(SqlStore(engine), name="noted", max_age_seconds=5.0).stats().pending == 2


ORDERS: Final = """
CREATE TABLE orders (id integer PRIMARY KEY, mail text);
CREATE FUNCTION ordered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM freshq_put('mail', to_jsonb(NEW), 'order-' || NEW.id, priority => 5, "group" => NEW.mail);
    RETURN NEW;
END $$;
CREATE TRIGGER ordered AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION ordered();
"""


def test_a_trigger_puts_in_the_transaction_of_its_row(engine: sa.Engine) -> None:
    queue = Queue(SqlStore(engine), name="mail")
    with engine.begin() as migration:
        migration.exec_driver_sql(ORDERS)
        migration.exec_driver_sql("INSERT INTO orders VALUES (1, 'a@b'), (2, 'c@d')")
    try:
        assert {task.task_id: (task.payload, task.group) for task in queue.list()} == {
            "order-1": ({"id": 1, "mail": "a@b"}, "a@b"),
            "order-2": ({"id": 2, "mail": "c@d"}, "c@d"),
        }
        with engine.connect() as connection, connection.begin() as transaction:
            connection.exec_driver_sql("INSERT INTO orders VALUES (3, 'e@f')")
            assert queue.get("order-3") is None
            transaction.rollback()
        # A refused put refuses the row.
        with (
            pytest.raises(sa.exc.DBAPIError, match="group: string should have at least 1 character"),
            engine.begin() as connection,
        ):
            connection.exec_driver_sql("INSERT INTO orders VALUES (4, '')")
        assert queue.stats().pending == 2
        claimed = queue.claim(5)
        assert [queue.complete(claim).status for claim in claimed] == ["SUCCESS"] * 2
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE orders; DROP FUNCTION ordered")


def test_a_put_is_told_at_the_commit_as_by_the_library(engine: sa.Engine) -> None:
    with closing(
        psycopg.connect(
            engine.url.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
        )
    ) as listening:
        listening.execute(f"LISTEN {channel_of('tasks')}")

        def told() -> list[str]:
            listening.execute(f"NOTIFY {channel_of('tasks')}, 'last'")
            heard = listening.notifies(timeout=PATIENCE_SECONDS)
            return list(
                itertools.takewhile(lambda payload: payload != "last", (each.payload for each in heard))
            )

        with engine.connect() as connection, connection.begin() as transaction:
            call(connection, "mail", "1")
            assert told() == []
            transaction.rollback()
        assert told() == []
        with engine.begin() as connection:
            call(connection, "mail", "1", task_id="a")
        by_function = told()
        with engine.begin() as connection:
            Queue(SqlStore(engine), name="mail").put(1, connection=connection)
        assert by_function == told() == ['["-","mail"]']
        put(engine, "mail", "1", task_id="a")
        assert told() == []  # a duplicate


@pytest.fixture
def apart(engine: sa.Engine) -> Any:
    """Return an engine of a schema of its own."""
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "My Apart"')
    opened = open_engine(engine.url.update_query_dict({"options": '-c search_path="My\\ Apart"'}))
    yield opened
    opened.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql('DROP SCHEMA "My Apart" CASCADE')


def test_each_table_of_each_schema_has_its_function(engine: sa.Engine, apart: sa.Engine) -> None:
    stores = {table: SqlStore(apart, table) for table in ("tasks", "Jobs")}
    for store in stores.values():
        store.create_table()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE tasks (task_id text) ON COMMIT DROP")
        connection.exec_driver_sql("""SELECT freshq_put('a', '"public"')""")
        connection.exec_driver_sql("""SELECT "My Apart".freshq_put('a', '"apart"')""")
        connection.exec_driver_sql("""SELECT "My Apart"."freshq_put_Jobs"('a', '"jobs"')""")
    found = {
        table: [task.payload for task in Queue(store, name="a").list()]
        for table, store in {"public": SqlStore(engine), **stores}.items()
    }
    assert found == {"public": ["public"], "tasks": ["apart"], "Jobs": ["jobs"]}


def functions(engine: sa.Engine, column: str = "oid") -> list[Any]:
    """Return a column of the functions."""
    with engine.connect() as connection:
        return list(
            connection.exec_driver_sql(
                f"SELECT {column} FROM pg_proc WHERE proname = 'freshq_put' ORDER BY oid"
            ).scalars()
        )


def test_the_function_of_another_version_is_replaced(engine: sa.Engine) -> None:
    before = functions(engine), functions(engine, "xmin::text"), functions(engine, "prosrc")
    assert len(before[0]) == 3
    SqlStore(engine).create_table()
    assert (functions(engine), functions(engine, "xmin::text")) == before[:2]
    with engine.begin() as connection:
        text = PutFunction(schema("tasks", "postgresql"), engine.dialect, "public.").texts()[0]
        connection.exec_driver_sql(
            text.replace("-- freshq ", "-- freshq 0"), execution_options={"no_parameters": True}
        )
    assert functions(engine, "prosrc") != before[2]
    (finding,) = (each for each in SqlStore(engine).examine() if each.subject == "schema")
    assert (finding.health, finding.text) == (
        "warning",
        "the function freshq_put is of another version of freshq",
    )
    SqlStore(engine).create_table()
    assert (functions(engine), functions(engine, "prosrc")) == (before[0], before[2])


def test_a_function_of_the_application_stays(apart: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    with apart.begin() as connection:
        connection.exec_driver_sql("CREATE FUNCTION freshq_put() RETURNS integer LANGUAGE sql AS 'SELECT 5'")
    SqlStore(apart).create_table()
    assert "function freshq_put: an application has one of this name" in caplog.text
    with apart.connect() as connection:
        assert connection.exec_driver_sql("SELECT freshq_put()").scalar_one() == 5


@pytest.fixture
def role(engine: sa.Engine) -> Any:
    """Return an engine of a user without rights."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE putter LOGIN")
    opened = open_engine(engine.url.set(username="putter"))
    yield opened
    opened.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY putter; DROP ROLE putter")


def test_the_function_has_the_rights_of_its_caller(engine: sa.Engine, role: sa.Engine) -> None:
    with pytest.raises(sa.exc.DBAPIError, match="permission denied for table tasks"):
        put(role, "default", "1")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "GRANT SELECT, INSERT ON tasks_records TO putter; GRANT INSERT ON tasks TO putter"
        )
    task_id, _outcome = put(role, "default", "1")
    with pytest.raises(sa.exc.DBAPIError, match="permission denied for table tasks"):
        put(role, "default", "1", task_id=task_id, on_conflict="update")
    with engine.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, UPDATE ON tasks TO putter")
    assert put(role, "default", "2", task_id=task_id, on_conflict="update") == (task_id, "UPDATED")


def test_a_task_that_a_policy_hides_is_an_error(engine: sa.Engine, role: sa.Engine) -> None:
    put(engine, "default", "1", task_id="a")
    with engine.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE ON tasks, tasks_records TO putter")
        connection.exec_driver_sql("CREATE POLICY only_new ON tasks FOR INSERT WITH CHECK (true)")
        connection.exec_driver_sql("ALTER TABLE tasks ENABLE ROW LEVEL SECURITY")
    try:
        with (
            pytest.raises(sa.exc.DBAPIError, match="taken by a task that you cannot see"),
            role.begin() as own,
        ):
            own.exec_driver_sql("SET LOCAL row_security = on")  # as in an application's connection
            own.exec_driver_sql(f"SET LOCAL statement_timeout = {1000 * PATIENCE_SECONDS:.0f}")
            call(own, "default", "2", task_id="a", on_conflict="update")
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE tasks DISABLE ROW LEVEL SECURITY")
            connection.exec_driver_sql("DROP POLICY only_new ON tasks")


def test_an_owner_who_may_not_create_functions(
    engine: sa.Engine, role: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA theirs; GRANT USAGE, CREATE ON SCHEMA theirs TO putter")
        connection.exec_driver_sql("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
    try:
        own = open_engine(role.url.update_query_dict({"options": "-c search_path=theirs"}))
        store = SqlStore(own)
        store.create_table()
        assert "function freshq_put: not created" in caplog.text
        assert "only SQL that puts tasks needs it" in caplog.text
        Queue(store).put("by the library")
        own.dispose()
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC; DROP SCHEMA theirs CASCADE"
            )


@pytest.mark.parametrize(
    "setting",
    [
        *(
            "standard_conforming_strings = off",
            "search_path = nowhere",
            "DateStyle = 'German'",
            "TimeZone = 'Asia/Kolkata'",
        ),
        *(
            "extra_float_digits = -15",
            "default_transaction_isolation = 'serializable'",
            "bytea_output = 'escape'",
        ),
    ],
)
def test_the_settings_of_a_session_do_not_matter(
    engine: sa.Engine, queues: dict[str, Queue], setting: str
) -> None:
    connection = engine.connect()
    try:
        connection.exec_driver_sql(f"SET {setting}")
        connection.commit()
        given: dict[str, Any] = {
            "at": datetime(2020, 2, 29, 1, 2, 3, 456_789, tzinfo=UTC),
            "max_age_seconds": 0.1,
            "value": 8.0,
        }
        payload = {"a\\b": ['"\n\0é', 1.5e300]}
        expected = taken_row(engine, queues["dear"].put(payload, **given).task_id)
        with connection.begin():
            task_id, _outcome = call(connection, "dear", json.dumps(payload), **given)
        assert_same(comparable(expected, given), comparable(taken_row(engine, task_id), given))
    finally:
        connection.invalidate()
        connection.close()


def test_a_history_has_its_puts(engine: sa.Engine) -> None:
    store = SqlStore(engine, queue="kept", history_seconds=60)
    store.create_table()
    try:
        put(engine, "kept", "1", task_id="a", kind="mail")
        with engine.connect() as connection:
            written = schema("tasks", "postgresql").history
            (event,) = connection.execute(sa.select(written).where(written.c.queue == "kept")).mappings()
        assert (event["change_kind"], event["task_id"], event["kind"]) == ("INSERT", "a", "mail")
    finally:
        store.history.end("kept")


# DO would turn a refusal into a warning.
ORDERED: Final = """
CREATE TRIGGER ordered AFTER INSERT ON orders FOR EACH ROW SET @put = freshq_put(
    'mail', JSON_OBJECT('id', NEW.id), JSON_OBJECT('task_id', CONCAT('order-', NEW.id), 'group', NEW.mail)
)
"""


def test_a_trigger_of_mariadb_puts_in_the_transaction_of_its_row(mariadb_engine: sa.Engine) -> None:
    queue = Queue(SqlStore(mariadb_engine), name="mail")
    with mariadb_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, mail VARCHAR(50))")
        connection.exec_driver_sql(ORDERED)
    try:
        with mariadb_engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders VALUES (1, 'a@b'), (2, 'c@d')")
        with mariadb_engine.connect() as connection, connection.begin() as transaction:
            connection.exec_driver_sql("INSERT INTO orders VALUES (3, 'e@f')")
            transaction.rollback()
        with (
            pytest.raises(sa.exc.DBAPIError, match="group: string should have at least 1 character"),
            mariadb_engine.begin() as connection,
        ):
            connection.exec_driver_sql("INSERT INTO orders VALUES (4, '')")
        found = {task.task_id: (task.payload, task.group) for task in queue.list()}
        assert found == {"order-1": ({"id": 1}, "a@b"), "order-2": ({"id": 2}, "c@d")}
        assert [queue.complete(claim).status for claim in queue.claim(5)] == ["SUCCESS"] * 2
    finally:
        with mariadb_engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE orders")


def test_the_function_of_mariadb_is_called_from_other_databases(mariadb_engine: sa.Engine) -> None:
    name = mariadb_engine.url.database
    with mariadb_engine.connect() as connection:
        try:
            connection.exec_driver_sql("CREATE DATABASE `else where`")
            connection.exec_driver_sql("USE `else where`")
            connection.exec_driver_sql("CREATE TABLE tasks (task_id INTEGER)")
            text = connection.exec_driver_sql(f"SELECT {name}.freshq_put('mail', '1', NULL)").scalar_one()
        finally:
            connection.exec_driver_sql("DROP DATABASE `else where`")
            connection.invalidate()
    assert Queue(SqlStore(mariadb_engine), name="mail").get(json.loads(text)["task_id"]) is not None


ODD_OBJECTS: Final = {
    "[]": "arguments: must be a JSON object",
    "{": "arguments: must be a JSON object",
    '{"parent": "a"}': "parent: unknown field; use one of task_id, priority, ",
    '{"priority": 5.0}': "priority: input should be a valid integer",
    '{"priority": "5"}': "priority: input should be a valid integer",
    '{"delay_seconds": true}': "delay_seconds: input should be a valid number",
    '{"kind": 5}': "kind: input should be a valid string",
}


@pytest.mark.parametrize(("others", "says"), ODD_OBJECTS.items())
def test_the_object_of_mariadb_is_checked(mariadb_engine: sa.Engine, others: str, says: str) -> None:
    with pytest.raises(sa.exc.DBAPIError, match=re.escape(says)), mariadb_engine.begin() as connection:
        connection.execute(sa.text("SELECT freshq_put('mail', '1', :others)"), {"others": others})


def test_the_function_of_mariadb_takes_null_for_no_arguments(mariadb_engine: sa.Engine) -> None:
    with mariadb_engine.begin() as connection:
        text = connection.exec_driver_sql("SELECT freshq_put('mail', '[1]', NULL)").scalar_one()
        with pytest.raises(sa.exc.DBAPIError, match="payload: must not be NULL"):
            connection.exec_driver_sql("SELECT freshq_put('mail', NULL, NULL)")
    assert Queue(SqlStore(mariadb_engine), name="mail").claim()[0].task.task_id == json.loads(text)["task_id"]


def test_the_user_of_mariadb_who_may_not_create_functions(
    mariadb_engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    user = "putter@'127.0.0.1'"
    with mariadb_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE USER {user}")
        connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON *.* TO {user}")
    own = open_engine(mariadb_engine.url.set(username="putter"))
    try:
        store = SqlStore(own, "their_tasks")
        store.create_table()
        assert "function freshq_put_their_tasks: not created" in caplog.text
        Queue(store).put("by the library")
        with pytest.raises(sa.exc.DBAPIError, match="execute command denied"):
            put(own, "default", "1")
        with mariadb_engine.begin() as connection:
            connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION freshq_put TO {user}")
        assert put(own, "default", "1")[1] == "CREATED"
    finally:
        own.dispose()
        with mariadb_engine.begin() as connection:
            connection.exec_driver_sql(f"DROP USER {user}")
            for table in schema("their_tasks", "mariadb").metadata.sorted_tables:
                connection.execute(sa.schema.DropTable(table))
