"""What a url may say, and that opening one makes no file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from freshq import MatchQueue, Queue, TableMissing
from freshq.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        "postgresql://app@localhost/a?application_name=x&sslmode=require&options=-csearch_path%3Dx",
        "postgresql://app@/a?host=/run/postgresql&port=5433&dbname=b&target_session_attrs=read-write",
        "mariadb://app@localhost/a?ssl_ca=/ca.pem&unix_socket=/run/x&local_infile=1&read_default_file=x",
    ],
)
def test_options_of_the_database_are_its_own(url: str) -> None:
    Queue.sql(url).close()


def test_sqlite_takes_only_what_it_knows() -> None:
    with pytest.raises(ValueError, match="SQLite has no option 'color'; use one of timeout, "):
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
    with pytest.raises(TableMissing, match=r"there is no file '.*new\.db'; .*create_table"):
        use(queue)
    assert not file.exists()
    queue.create_table()
    queue.put(1)
    assert file.exists()
    queue.close()


def test_so_for_matching(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    match = MatchQueue.sql(f"sqlite:///{file}")
    for verb in (lambda: match.register("ann", {}), lambda: match.match({}), match.delete_table):
        with pytest.raises(TableMissing, match="there is no file"):
            verb()
    assert not file.exists()
    match.create_table()
    match.register("ann", {"language": "en"})
    match.close()


@pytest.mark.parametrize("command", [["put", "1", "--queue", "memory://"], ["table", "create", "memory://"]])
def test_memory_would_forget(command: list[str]) -> None:
    answer = run(app, command)
    assert (answer.exit_code, "use sqlite:///FILE" in answer.output) == (2, True)


def test_a_shell_has_a_memory() -> None:
    answer = run(app, ["shell", "--queue", "memory://"], input="put 1 --id a\nget a\n")
    assert (answer.exit_code, "CREATED" in answer.output) == (0, True)
