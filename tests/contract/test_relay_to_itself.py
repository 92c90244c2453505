"""A relay whose destination is its source, under another address or not, loses no task."""

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from freshq import Queue
from freshq.cli.main import app
from freshq.feeds import Relay
from freshq.queue.core import core_of
from freshq.stores.memory import MemoryStore
from freshq.stores.sql.url import place_of
from tests.conftest import DATABASES, StoreUnderTest
from tests.support.readings import counts, ids, known

run = CliRunner().invoke
ONCE = ("--idle-exit-seconds", "0")
REFUSAL = "destination: it is the source, or a queue of the source's table"


def test_a_relay_to_its_own_source_is_refused_at_once(store: StoreUnderTest) -> None:
    source = store.queue()
    source.put("work", task_id="a")
    with pytest.raises(ValueError, match=REFUSAL):
        Relay(source, source)
    if store.kind not in DATABASES:  # their stores are not opened for one queue here
        with pytest.raises(ValueError, match=REFUSAL):
            Relay(source, store.queue())
    assert counts(source.stats()) == {"pending": 1}
    assert known(source, "a").attempts == 0


def test_a_source_that_is_not_recognized_gets_its_tasks_back(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if by two names of one server, or two clients of one account."""
    source, destination = store.queue(), store.queue()
    source.put_many([{"payload": number, "task_id": str(number)} for number in range(5)])
    monkeypatch.setattr(core_of(source).store, "place", None)
    relay = Relay(source, destination, batch=3)
    with pytest.raises(ValueError, match=REFUSAL):
        relay.move()
    assert counts(source.stats()) == {"pending": 5}
    assert {known(source, task_id).attempts for task_id in "01234"} == {0}
    assert ids(source.claim(limit=5)) == ["4", "3", "2", "1", "0"]


def test_a_queue_of_another_name(store: StoreUnderTest) -> None:
    """A destination where ids are unique within a queue, and a refusal where they are within the table."""
    source, other = store.queue(name="outbox"), store.queue(name="work")
    source.put("work", task_id="a")
    if store.kind in DATABASES:
        assert Relay(source, other).move() == 1
        assert ids(other.claim()) == ["a"]
        return
    with pytest.raises(ValueError, match=REFUSAL):
        Relay(source, other)
    assert counts(source.stats()) == {"pending": 1}


def test_an_id_that_another_queue_of_the_destination_has_is_not_an_arrival() -> None:
    destination = MemoryStore()
    source = Queue.memory(max_attempts=1)
    source.put("work", task_id="a")
    Queue(destination, name="other").put("another", task_id="a")
    assert Relay(source, Queue(destination, name="work")).move() == 1
    assert counts(source.stats()) == {"failure": 1}
    assert "its id is taken by a task of queue 'other'" in (known(source, "a").error or "")


class TestCommand:
    def test_other_spellings_of_the_same_file_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run(app, ["table", "create", "sqlite:///a.db"]).exit_code == 0
        assert run(app, ["put", "1", "--queue", "sqlite:///a.db"]).exit_code == 0
        (tmp_path / "folder").mkdir()
        (tmp_path / "linked.db").symlink_to("a.db")
        for same in ("a.db", "./a.db", "folder/../a.db", "linked.db", os.fspath(tmp_path / "a.db")):
            answer = run(
                app,
                [
                    "relay",
                    "--from",
                    "sqlite:///a.db",
                    "--to",
                    f"sqlite:///{same}",
                    "--idle-exit-seconds",
                    "0",
                ],
            )
            assert (answer.exit_code, REFUSAL in answer.output) == (2, True), same
        queue = Queue.sql("sqlite:///a.db")
        assert counts(queue.stats()) == {"pending": 1}
        queue.close()

    def test_options_of_the_addresses_count(self, tmp_path: Path) -> None:
        files = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
        queues: dict[str, Any] = {}
        for file in files:
            queues[file] = Queue.sql(file, name="mail"), Queue.sql(file)
            Queue.sql(file).create_table()
            for queue in queues[file][: 2 if file == files[0] else 0]:
                queue.put(queue.name, task_id=queue.name)
        ends = ["--from", f"{files[0]}?name=mail", "--to", f"{files[1]}?name=mail&max_age_seconds=60"]
        assert run(app, ["relay", *ends, *ONCE]).output == "1 task relayed\n"
        assert counts(queues[files[0]][1].stats()) == {"pending": 1}
        relayed = known(queues[files[1]][0], "mail")
        assert relayed.stale_at - relayed.created == pytest.approx(60, abs=0.01)
        for opened in queues.values():
            for queue in opened:
                queue.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("postgresql://app@localhost/a", "postgresql+psycopg://app:secret@LOCALHOST:5432/a", True),
        ("mysql://app@db/a", "mariadb://app@db:3306/a", True),
        ("mysql://app@/a", "mariadb://app@localhost/a", True),
        ("postgresql://app@/a", "postgresql://app@/a", True),
        ("postgresql://app@/a", "postgresql://app@localhost/a", False),
        ("postgresql://app@db/a", "postgresql://app@db:5433/a", False),
        ("postgresql://app@db/a", "postgresql://app@db/b", False),
        ("postgresql://app@db/a", "postgresql://other@db/a", False),
        ("postgresql://app@db/a", "postgresql://app@db/a?options=-csearch_path=x", False),
        ("mysql://app@db/a", "postgresql://app@db/a", False),
    ],
)
def test_two_urls_of_one_place(monkeypatch: pytest.MonkeyPatch, one: str, other: str, *, same: bool) -> None:
    """The user and the options may choose the schema."""
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    assert (place_of(make_url(one)) == place_of(make_url(other))) is same


def test_what_the_environment_adds_to_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db")
    monkeypatch.setenv("PGPORT", "5433")
    silent, full = (place_of(make_url(url)) for url in ("postgresql:///a", "postgresql://db:5433/a"))
    assert silent == full
    assert place_of(make_url("postgresql://localhost/a")) not in (silent, full)
