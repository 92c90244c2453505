"""Addresses with several servers, a server that takes no writes, and a server that forgets commits."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from local.servers import Server

from freshq import MatchQueue, Queue
from freshq.addresses import open_queue
from freshq.errors import Unreachable
from freshq.stores.sql.failures import translated
from freshq.stores.sql.url import parsed_url
from tests.sql.workers import LIMITS
from tests.support.readings import payloads
from tests.support.refusals import refused

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("servers", "hosts", "ports"),
    [
        ("a:1,b:2", "a,b", "1,2"),
        ("a,b", "a,b", "5432,5432"),
        ("user:p%40w@a:1,[::1]:2", "a,::1", "1,2"),
    ],
)
def test_several_servers_are_one_address(servers: str, hosts: str, ports: str) -> None:
    url = parsed_url(f"postgresql://{servers}/name?connect_timeout=3")
    _, arguments = url.get_dialect()().create_connect_args(url)
    assert (arguments["host"], arguments["port"], arguments["dbname"]) == (hosts, ports, "name")
    assert (arguments["target_session_attrs"], arguments["connect_timeout"]) == ("read-write", "3")


@pytest.mark.parametrize("url", ["postgresql://a,b/d", "postgresql://u@/d?host=a&host=b"])
def test_the_address_chooses_which_server(url: str) -> None:
    chosen = f"{url}{'&' if '?' in url else '?'}target_session_attrs=any"
    assert parsed_url(url).query["target_session_attrs"] == "read-write"
    assert parsed_url(chosen).query["target_session_attrs"] == "any"
    assert "target_session_attrs" not in parsed_url("postgresql://u:a,b@h/d").query


@pytest.mark.parametrize("url", ["postgresql://a:x,b:1/d", "postgresql://a:1,,b/d", "mariadb://a:1,b:2/d"])
def test_malformed_servers(url: str) -> None:
    with refused("url"):
        Queue.sql(url)


@pytest.mark.parametrize("open_url", [Queue.sql, open_queue])
def test_a_queue_uses_the_server_that_answers(
    postgres_server: Server, postgres_engine: sa.Engine, open_url: Callable[[str], Any]
) -> None:
    del postgres_engine  # its tables are empty
    user, _, place = postgres_server.url.removeprefix("postgresql+psycopg://").partition("@")
    queue = open_url(f"postgresql://{user}@{NOBODY},{place}")
    queue.put("work")
    assert payloads(queue.claim()) == ["work"]
    queue.close()
    matching = MatchQueue.sql(f"postgresql://{user}@{NOBODY},{place}", "found")
    matching.create_table()
    matching.close()


@pytest.mark.usefixtures("no_pauses")
def test_a_server_that_takes_no_writes(postgres_server: Server, postgres_engine: sa.Engine) -> None:
    read_only = "ALTER DATABASE postgres SET default_transaction_read_only = {}"
    apart = sa.create_engine(postgres_server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    del postgres_engine  # its tables are empty
    with apart.connect() as connection, Queue.sql(postgres_server.url, **LIMITS) as queue:
        connection.execute(sa.text(read_only.format("on")))
        try:
            for verb in (lambda: queue.put("work"), queue.pause):
                with pytest.raises(Unreachable, match="primary"):
                    verb()
        finally:
            connection.execute(sa.text(read_only.format("off")))
        queue.put("work")
        queue.pause()


@pytest.mark.parametrize("number", [1290, 1792, 1836])
def test_a_replica_of_mariadb_takes_no_writes(number: int) -> None:
    error = translated(Exception(number, "running with the --read-only option"), "mariadb", "tasks")
    assert isinstance(error, Unreachable)
    assert "takes no writes" in str(error)


@pytest.mark.parametrize(("value", "warns"), [(2, True), (1, False)])
def test_a_server_that_may_forget_commits(
    mariadb_server: Server, caplog: pytest.LogCaptureFixture, value: int, warns: bool
) -> None:
    engine = sa.create_engine(mariadb_server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    variable = "innodb_flush_log_at_trx_commit"
    with engine.connect() as connection, Queue.sql(mariadb_server.url, "flushed") as queue:
        before = connection.execute(sa.text(f"SELECT @@{variable}")).scalar_one()
        connection.execute(sa.text(f"SET GLOBAL {variable} = {value}"))
        queue.create_table()
        connection.execute(sa.text(f"SET GLOBAL {variable} = {before}"))
    assert (f"set {variable}=1" in caplog.text) == warns
