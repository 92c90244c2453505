"""Options stored with a queue: writers, readers and precedence."""

import json
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.stores.sql import SqlStore
from tests.unit.cli.test_cli_verbs import answer, fails, freshq


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a new queue on SQLite, without options; FRESHQ_QUEUE names it."""
    found = f"sqlite:///{tmp_path / 'tasks.db'}"
    with closing(Queue.sql(found)) as queue:
        queue.create_table()
    monkeypatch.setenv("FRESHQ_QUEUE", found)
    return found


def put_all(*task_ids: str) -> None:
    for task_id in task_ids:
        answer("put", "1", "--task-id", task_id)


def stored(*words: str) -> dict[str, Any]:
    """Return the stored options that `freshq configure` shows."""
    shown = answer("configure", *words)
    return {name: row["value"] for name, row in shown.items() if row["source"] == "stored"}


class TestReading:
    @pytest.mark.parametrize("way", ["flag", "address"])
    def test_tasks_that_are_never_stale_have_no_deadline(
        self, url: str, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if way == "flag":
            assert stored("--max-age-seconds", "None") == {"max_age_seconds": None}
            assert re.search(r"^max_age_seconds +none +stored", freshq("configure").stdout, re.MULTILINE)
        else:
            monkeypatch.setenv("FRESHQ_QUEUE", f"{url}?max_age_seconds=none&override=on")
        put_all("first")
        assert answer("get", "first")["deadline"] is None
        assert "never" in freshq("get", "first").stdout
        monkeypatch.setenv("FRESHQ_QUEUE", f"{url}?max_age_seconds=soon")
        fails(2, "max_age_seconds: must be a number or none, got 'soon'", "stats")

    def test_python_and_commands_have_the_same_options(self, url: str) -> None:
        assert stored("--order", "fifo", "--lease-seconds", "7", "--max-attempts", "1") == {
            "order": "fifo",
            "lease_seconds": 7.0,
            "max_attempts": 1,
        }
        put_all("first", "second")
        with closing(Queue.sql(url)) as queue:
            (claim,) = queue.claim()
            assert claim.task.task_id == "first"
            queue.retry(claim)
        assert answer("get", "first")["status"] == "FAILURE"
        (claimed,) = answer("claim")
        assert claimed["task_id"] == "second"
        assert claimed["lease_until"] - claimed["updated"] == pytest.approx(7)

    def test_it_shows_each_option_and_its_source(self, url: str) -> None:
        answer("configure", "--order", "fifo", "--backlog", "1000,refuse-newest")
        shown = answer("configure", "--queue", f"{url}?max_attempts=2&override=on")
        assert shown["order"] == {"value": "fifo", "source": "stored"}
        assert shown["max_attempts"] == {"value": 2, "source": "named"}
        assert shown["lease_seconds"] == {"value": 60.0, "source": "default"}
        lines = {line.split()[0]: line.split()[1:] for line in freshq("configure").stdout.splitlines()}
        assert lines["backlog"] == ["1000,refuse-newest", "stored"]
        assert lines["admission"] == ["none", "default"]
        assert "shards" not in lines

    def test_another_value_in_an_address_is_refused_unless_it_overrides(self, url: str) -> None:
        answer("configure", "--order", "fifo")
        put_all("first", "second")
        other = f"{url}?order=lifo&max_attempts=2"
        fails(2, "order: queue 'default' has fifo stored, and lifo was named", "claim", "--queue", other)
        fails(2, "freshq configure --order lifo --max-attempts 2", "stats", "--queue", other)
        fails(2, "override=True", "work", "builtins:print", "--queue", other)
        (claimed,) = answer("claim", "--queue", f"{other}&override=on")
        assert claimed["task_id"] == "second"
        # The suggested remedy works with the address that has the other value.
        fails(
            2,
            "max_attempts: queue 'default' has 5 by default",
            "configure",
            "--order",
            "lifo",
            "--queue",
            other,
        )
        assert stored("--order", "lifo", "--max-attempts", "2", "--queue", other) == {
            "order": "lifo",
            "max_attempts": 2,
        }
        assert answer("claim", "--queue", other)[0]["task_id"] == "first"

    def test_each_queue_of_a_table_has_its_own(self, url: str) -> None:
        answer("configure", "--order", "fifo", "--name", "mail")
        assert stored("--name", "mail") == {"order": "fifo"}
        assert stored() == {}
        assert url


class TestWriting:
    @pytest.mark.usefixtures("url")
    @pytest.mark.parametrize(
        ("said", "arguments"),
        [
            ("max_attempts: ", ["--max-attempts", "0"]),
            ("max_age_seconds: ", ["--order", "fifo", "--max-age-seconds", "-1"]),
            ("reserve: ", ["--reserve", "p200"]),
            ("codel: works only with order=fifo", ["--codel", "1,2"]),
            ("backlog: must be MAX_WAITING,WHEN_FULL,GROUP_SHARE, got 'many'", ["--backlog", "many"]),
            ("backoff: must be BASE_SECONDS,CAP_SECONDS, got '1,2,3'", ["--backoff", "1,2,3"]),
            ("shards: cannot be stored with this queue", ["--shards", "2"]),
        ],
    )
    def test_a_wrong_one_is_refused_and_nothing_is_written(self, said: str, arguments: Sequence[str]) -> None:
        answer("configure", "--lease-seconds", "9")
        fails(2, said, "configure", *arguments)
        assert stored() == {"lease_seconds": 9.0}

    @pytest.mark.usefixtures("url")
    def test_some_are_changed_and_all_are_forgotten(self) -> None:
        answer("configure", "--order", "fifo", "--lease-seconds", "9", "--codel", "0.5,1", "--admission", "2")
        assert stored("--lease-seconds", "8", "--codel", "none", "--admission", "none") == {
            "order": "fifo",
            "lease_seconds": 8.0,
            "codel": None,
            "admission": None,
        }
        assert answer("purge", "--yes") == {"deleted": 0}
        assert stored()["order"] == "fifo"
        assert stored("--forget", "--max-attempts", "3") == {"max_attempts": 3}
        assert stored("--forget") == {}

    def test_a_new_queue_has_those_of_its_url(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'new.db'}"
        fails(2, "max_age_seconds: ", "table", "create", f"{url}?max_age_seconds=-1")
        assert not (tmp_path / "new.db").exists()
        for _ in range(2):
            assert freshq("table", "create", f"{url}?order=fifo&max_age_seconds=50").exit_code == 0
        assert stored("--queue", url) == {"order": "fifo", "max_age_seconds": 50.0}
        fails(
            2, "lease_seconds: queue 'default' has 60 by default", "table", "create", f"{url}?lease_seconds=9"
        )
        fails(2, "order: queue 'default' has fifo stored", "table", "create", f"{url}?order=lifo")


def test_shards_are_stored_on_dynamodb(account_client: DynamoDBClient) -> None:
    assert freshq("table", "create", "dynamodb://Sharded?shards=4").exit_code == 0
    Queue.dynamodb("Sharded", account_client, shards=4).put_many(
        [{"payload": number} for number in range(12)]
    )
    claims = answer("claim", "--limit", "12", "--queue", "dynamodb://Sharded")
    assert sorted(claim["payload"] for claim in claims) == list(range(12))
    for wrong in ("0", "2"):
        fails(2, "shards: ", "configure", "--shards", wrong, "--queue", "dynamodb://Sharded")


class TestHistory:
    """The history is no stored option: `table create` makes the database keep it."""

    @staticmethod
    def kept_seconds(url: str) -> float | None:
        """Return how long the history of a queue is kept; None if it keeps none."""
        with closing(SqlStore(url, queue="default")) as store:
            if store.history.kept("default") is None:
                return None
            seconds: float = store.history.check("default").keep_seconds
            return seconds

    def test_an_address_begins_and_ends_it(self, url: str) -> None:
        assert self.kept_seconds(url) is None
        assert freshq("table", "create", f"{url}?history=on&history_seconds=90").exit_code == 0
        assert self.kept_seconds(url) == 90
        assert freshq("table", "create", f"{url}?order=lifo").exit_code == 0
        assert self.kept_seconds(url) == 90
        assert freshq("table", "create", f"{url}?history=true").exit_code == 0
        assert self.kept_seconds(url) == 7 * 86_400
        assert freshq("table", "create", f"{url}?history=off").exit_code == 0
        assert self.kept_seconds(url) is None

    @pytest.mark.parametrize(
        ("option", "problem"),
        [
            ("history=maybe", "history: must be True or False (in an address, on or off), got 'maybe'"),
            ("history_seconds=5", "history_seconds: only with history=True"),
            ("history=on&history_seconds=x", "history_seconds: must be a number"),
        ],
    )
    def test_wrong_values_change_nothing(self, url: str, option: str, problem: str) -> None:
        fails(2, problem, "table", "create", f"{url}?{option}")
        assert self.kept_seconds(url) is None

    def test_another_store_has_none(self) -> None:
        fails(2, "unknown option 'history' in the address", "table", "create", "dynamodb://Tasks?history=on")


@pytest.mark.usefixtures("url")
class TestGroups:
    def test_rules_of_groups_are_changed_one_by_one_and_shown_with_their_tasks(self) -> None:
        assert answer("group", "set", "acme", "--weight", "3", "--max-running", "1") == {
            "acme": {"weight": 3.0, "max_running": 1}
        }
        answer("group", "set", "acme", "--rate", "2", "--units", "5", "--burst", "7")
        answer("group", "set", "*", "--max-running", "9")
        for name in ("acme", "acme", "other"):
            answer("put", "1", "--group", name)
        assert len(answer("claim", "--limit", "3")) == 2
        answer("put", "1", "--group", "other", "--max-age-seconds", "0.001")
        shown = answer("group", "ls")["groups"]
        rule = {"weight": 3.0, "max_running": 1, "rate_per_second": 2.0}
        rule |= {"units_per_second": 5.0, "burst_units": 7.0}
        assert shown["*"] == {"max_running": 9}
        assert shown["acme"] == {
            "waiting": 1,
            "running": 1,
            "running_share": 0.5,
            "shed": 0,
            "at_limit": True,
            **rule,
        }
        assert shown["other"] == {
            "waiting": 0,
            "running": 1,
            "running_share": 0.5,
            "shed": 1,
            "at_limit": False,
        }
        heading, acme = (
            next(line for line in freshq("group", "ls").stdout.splitlines() if line.split()[:1] == [name])
            for name in ("group", "acme")
        )
        assert heading.split()[:3] == ["group", "waiting", "running"]
        assert acme.split() == ["acme", "1", "1", "0.5", "0", "yes", "3.0", "1", "2.0", "5.0", "7.0"]
        assert answer("group", "unset", "acme") == {"acme": {"max_running": 9}}
        assert answer("group", "unset", "*") == {"*": {}}
        assert stored()["groups"] == {}

    def test_rules_of_kinds_and_what_groups_share_are_shown(self) -> None:
        rules = {"kinds": {"embed": {"rate_per_second": 2}}, "share": "units"}
        answer("configure", "--groups", json.dumps(rules))
        shown = answer("group", "ls")
        assert {name: shown[name] for name in rules} == rules
        lines = [line.split() for line in freshq("group", "ls").stdout.splitlines()]
        assert lines[0] == ["Groups", "share", "units", "by", "their", "weights."]
        assert ["embed", "2"] in lines

    def test_wrong_rules_are_refused(self) -> None:
        fails(2, "set: give --weight", "group", "set", "acme")
        fails(2, "weight: must be from", "group", "set", "acme", "--weight", "0")
        fails(2, "'acme' has no rule", "group", "unset", "acme")


class TestDoctor:
    def test_it_names_the_processes_that_use_other_options(self, url: str) -> None:
        assert "uses" not in freshq("doctor").stdout
        with closing(Queue.sql(url, order="fifo", override=True, worker_name="own")) as queue:
            queue.put(1)
        (found,) = [
            each for each in answer("doctor") if each["subject"] == "options" and each["health"] == "warning"
        ]
        assert re.search(r"\(own\) uses order=fifo, the queue has lifo; seen ", found["text"])
        assert found["action"] == "open it there without override, or freshq configure --order fifo"
        answer("configure", "--order", "fifo")
        assert "uses" not in freshq("doctor").stdout

    def test_it_says_what_an_address_names_otherwise(self, url: str) -> None:
        address = f"{url}?order=fifo"
        assert freshq("doctor", "--queue", address).exit_code == 0  # nobody has used the new table
        freshq("put", "1")
        done = freshq("doctor", "--queue", address)
        assert done.exit_code == 1
        assert "order: queue 'default' has lifo by default, and fifo was named" in done.stdout
