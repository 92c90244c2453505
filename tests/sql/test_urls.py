"""Valid and invalid urls; opening one makes no file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url
from typer.testing import CliRunner

from freshq import MatchQueue, Queue
from freshq.addresses import open_queue
from freshq.cli.main import app
from freshq.errors import TableMissing, Unreachable
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.url import ConnectionLimits, check_url_options
from tests.support.refusals import refused
from tests.support.statements import database_of

run = CliRunner().invoke
SERVERS = ("postgresql://app@localhost/a", "mariadb://app@localhost/a")


@pytest.mark.parametrize("base", ["sqlite:///a.db", *SERVERS])
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("max_age_seconds=5", "max_age_seconds is an option of freshq, .*max_age_seconds=..."),
        ("durable=off", "durable is an option of freshq"),
        ("max_age=60", "'max_age' is not an option of the database; did you mean freshq's max_age_seconds?"),
        ("lease=5", "did you mean freshq's lease_seconds?"),
        ("Order=fifo", "did you mean freshq's order?"),
        ("max-attempts=5", "did you mean freshq's max_attempts?"),
        ("retention_second=5", "did you mean freshq's retention_seconds?"),
    ],
)
@pytest.mark.parametrize("open_url", [Queue.sql, MatchQueue.sql])
def test_options_of_freshq_in_a_url_are_refused(
    base: str, query: str, problem: str, open_url: Callable[[str], Any]
) -> None:
    with pytest.raises(ValueError, match=f"^url: .*{problem}".replace("?", r"\?")):
        open_url(f"{base}?{query}")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a.db?timeout=3&check_same_thread=false",
        "sqlite:///file:a.db?mode=ro&uri=true",
        "sqlite:///file:a.db?modeof=b.db&uri=true",
        "postgresql://app@localhost/a?connect_timeout=3&keepalives=0",
        "mariadb://app@localhost/a?connect_timeout=3&read_timeout=4&write_timeout=5",
        "postgresql://app@localhost/a?application_name=x&sslmode=require&options=-csearch_path%3Dx",
        "postgresql://app@/a?host=/run/postgresql&port=5433&dbname=b&target_session_attrs=read-write",
        "mariadb://app@localhost/a?ssl_ca=/ca.pem&unix_socket=/run/x&local_infile=1&read_default_file=x",
    ],
)
def test_options_of_the_database_are_its_own(url: str) -> None:
    Queue.sql(url).close()


def arguments(url: str) -> dict[str, Any]:
    """Return the arguments with which the driver of an engine is called."""
    given: dict[str, Any] = {}

    def connect(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        given.update(options)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("freshq.stores.sql.database._connect_bounded", connect)
        engine = open_engine(url, ConnectionLimits(connect_timeout_seconds=7, lock_timeout_seconds=8))
    event.listen(engine, "do_connect", connect)
    with pytest.raises(InterruptedError):
        engine.raw_connection()
    return given


@pytest.mark.parametrize(
    ("url", "name", "counts", "otherwise"),
    [
        ("postgresql://app@localhost/a", "connect_timeout", 3, 7),
        ("postgresql://app@localhost/a", "keepalives_idle", 3, 10),
        ("postgresql://app@localhost/a", "tcp_user_timeout", 3, 15_000),
        ("mariadb://app@localhost/a", "connect_timeout", 3, 7),
        ("mariadb://app@localhost/a", "read_timeout", 3, 15),
        ("sqlite:///a.db", "timeout", 3, 8),
    ],
)
def test_a_limit_in_the_url_counts(url: str, name: str, counts: int, otherwise: int) -> None:
    assert arguments(url)[name] == otherwise
    assert float(arguments(f"{url}?{name}={counts}")[name]) == counts
    with refused("url"):
        Queue.sql(f"{url}?{name}=soon")


def test_an_address_takes_the_timeouts_of_freshq(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/a.db"
    assert run(app, ["table", "create", f"{address}?lock_timeout_seconds=3"]).exit_code == 0
    answer = run(app, ["table", "create", f"{address}?answer_timeout_seconds=soon"])
    assert (answer.exit_code, "answer_timeout_seconds: must be a number" in answer.output) == (2, True)
    answer = run(app, ["table", "create", f"{address}?connect_timeout_seconds=-1"])
    assert (answer.exit_code, "connect_timeout_seconds" in answer.output) == (2, True)


def test_other_drivers_of_sqlite_have_options_of_their_own() -> None:
    check_url_options(make_url("sqlite+pysqlcipher://:secret@/a.db?kdf_iter=64000"))


def test_sqlite_takes_only_what_it_knows() -> None:
    with refused("url"):
        Queue.sql("sqlite:///a.db?color=red")


@pytest.mark.parametrize("command", [["table", "create"], ["put", "1", "--queue"]])
def test_commands_refuse_misspelt_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(app, ["table", "create", "sqlite:///a.db"]).exit_code == 0
    answer = run(app, [*command, "sqlite:///a.db?max_age=60"])
    assert (answer.exit_code, "did you mean freshq's max_age_seconds?" in answer.output) == (2, True)


@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.put(1),
        lambda queue: queue.claim(),
        lambda queue: queue.stats(),
        lambda queue: queue.transaction().__enter__(),
    ],
)
def test_only_create_table_makes_a_file(tmp_path: Path, use: Callable[[Queue], object]) -> None:
    file = tmp_path / "new.db"
    queue = Queue.sql(f"sqlite:///{file}")
    with pytest.raises(TableMissing):
        use(queue)
    assert not file.exists()
    queue.create_table()
    queue.put(1)
    assert file.exists()
    queue.close()


def test_the_path_is_that_of_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon goes to another folder after it opened its queue."""
    monkeypatch.chdir(tmp_path)
    made = Queue.sql("sqlite:///a.db")
    made.create_table()
    made.close()
    queue = Queue.sql("sqlite:///a.db")
    monkeypatch.chdir("/")
    queue.put(1)
    assert queue.stats().pending == 1
    queue.close()


def test_a_path_that_cannot_be_looked_up_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"sqlite:///{tmp_path}/{'x' * 300}.db"
    with pytest.raises(Unreachable):
        Queue.sql(long).put(1)
    assert run(app, ["put", "1", "--queue", long]).exit_code == 3

    def deny(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("freshq.stores.sql.url.Path.stat", deny)
    for opened in (Queue.sql, open_queue):
        with pytest.raises(Unreachable):
            opened(f"sqlite:///{tmp_path}/none/a.db").put(1)


@pytest.mark.parametrize(("query", "level"), [("durable=off", 1), ("durable=on", 2), ("timeout=5", 2)])
def test_an_address_says_whether_sqlite_waits_for_the_disk(sqlite_url: str, query: str, level: int) -> None:
    queue = open_queue(f"{sqlite_url}?{query}")
    with database_of(queue).engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == level
    queue.close()


def test_durable_is_on_or_off(sqlite_url: str) -> None:
    with refused("durable"):
        open_queue(f"{sqlite_url}?durable=no")


def test_so_for_matching(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    match = MatchQueue.sql(f"sqlite:///{file}")
    for verb in (lambda: match.register("ann", attributes={}), lambda: match.match({}), match.delete_table):
        with pytest.raises(TableMissing):
            verb()
    assert not file.exists()
    match.create_table()
    match.register("ann", attributes={"language": "en"})
    match.close()


@pytest.mark.parametrize("command", [["put", "1", "--queue", "memory://"], ["table", "create", "memory://"]])
def test_memory_would_forget(command: list[str]) -> None:
    answer = run(app, command)
    assert (answer.exit_code, "use sqlite:///FILE" in answer.output) == (2, True)


def test_a_shell_has_a_memory() -> None:
    answer = run(app, ["shell", "--queue", "memory://"], input="put 1 --task-id a\nget a\n")
    assert (answer.exit_code, "CREATED" in answer.output) == (0, True)


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:///a?b.db",
        "sqlite:///a?b=c.db",
        "sqlite:///a?b.db&mode=ro",
        "sqlite:///a?=b",
        "sqlite:///a?mode=",
    ],
)
def test_a_question_mark_in_the_name_of_a_file(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^url: .*%3F"):
        Queue.sql(address).create_table()
    assert [*tmp_path.iterdir()] == []
    queue = Queue.sql("sqlite:///a%3Fb.db")
    queue.create_table()
    queue.close()
    assert [file.name for file in tmp_path.iterdir()] == ["a?b.db"]


@pytest.mark.parametrize("address", ["postgresql://db/app?sslmode", "mariadb://app:a?b@db/app?charset="])
def test_an_option_without_a_value(address: str) -> None:
    with refused("url"):
        Queue.sql(address)


@pytest.mark.parametrize("address", ["postgresql://app:a?b#c@db/app?sslmode=disable", "sqlite:///a.db?"])
def test_an_address_with_such_characters_elsewhere(address: str) -> None:
    Queue.sql(address).close()
