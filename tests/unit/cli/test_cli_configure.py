"""Options stored with a queue: who writes them, who reads them, and what wins."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.addresses import open_queue
from freshq.cli.configuration import open_configured
from freshq.queue.core import core_of
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


class TestReading:
    @pytest.mark.usefixtures("url")
    def test_a_command_uses_what_is_stored(self) -> None:
        stored = {"order": "fifo", "max_age_seconds": 100.0, "lease_seconds": 7.0}
        words = ("--order", "fifo", "--max-age-seconds", "100", "--lease-seconds", "7")
        assert answer("configure", *words) == stored
        put_all("first", "second")
        (claim,) = answer("claim")
        assert claim["task_id"] == "first"
        assert claim["lease_until"] - claim["updated"] == pytest.approx(7)
        assert claim["deadline"] - claim["created"] == pytest.approx(100, abs=0.1)

    @pytest.mark.parametrize("way", ["flag", "address"])
    def test_tasks_that_are_never_stale_have_no_deadline(
        self, url: str, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if way == "flag":
            assert answer("configure", "--max-age-seconds", "None") == {"max_age_seconds": "none"}
            assert "max_age_seconds  none" in freshq("configure").stdout
        else:
            monkeypatch.setenv("FRESHQ_QUEUE", f"{url}?max_age_seconds=none")
        put_all("first")
        assert answer("get", "first")["deadline"] is None
        assert "never" in freshq("get", "first").stdout
        monkeypatch.setenv("FRESHQ_QUEUE", f"{url}?max_age_seconds=soon")
        fails(2, "max_age_seconds: must be a number or none, got 'soon'", "stats")

    def test_the_address_wins_and_a_contradiction_is_said(self, url: str) -> None:
        answer("configure", "--order", "fifo", "--max-attempts", "2")
        put_all("first", "second")
        done = freshq("claim", "--json", "--queue", f"{url}?order=lifo&max_attempts=2")
        assert json.loads(done.stdout)[0]["task_id"] == "second"
        assert done.stderr == (
            "freshq: order: the address says lifo, which counts here; "
            "queue 'default' is configured with fifo\n"
        )

    def test_each_queue_of_a_table_has_its_own(self, url: str) -> None:
        answer("configure", "--order", "fifo", "--name", "mail")
        assert answer("configure", "--name", "mail") == {"order": "fifo"}
        assert answer("configure") == {}
        assert "no options are stored" in freshq("configure").stdout
        with closing(open_configured(url, "mail")) as queue:
            assert core_of(queue).store.read_record("mail", "freshq#options") is not None

    def test_an_unknown_one_is_an_error(self, url: str) -> None:
        with closing(open_queue(url)) as queue:
            core_of(queue).store.write_record("default", "freshq#options", {"of_tomorrow": 1}, None)
        fails(2, "of_tomorrow: unknown option", "stats")


class TestWriting:
    @pytest.mark.usefixtures("url")
    @pytest.mark.parametrize(
        ("said", "arguments"),
        [
            ("max_attempts: ", ["--max-attempts", "0"]),
            ("max_age_seconds: ", ["--order", "fifo", "--max-age-seconds", "-1"]),
            ("reserve: ", ["--reserve", "p200"]),
            ("shards: cannot be stored with this queue", ["--shards", "2"]),
            ("forget: give either", ["--forget", "--order", "fifo"]),
        ],
    )
    def test_a_wrong_one_is_refused_and_nothing_is_written(self, said: str, arguments: Sequence[str]) -> None:
        answer("configure", "--lease-seconds", "9")
        fails(2, said, "configure", *arguments)
        assert answer("configure") == {"lease_seconds": 9.0}

    @pytest.mark.usefixtures("url")
    def test_some_are_changed_and_all_are_forgotten(self) -> None:
        answer("configure", "--order", "fifo", "--lease-seconds", "9")
        assert answer("configure", "--lease-seconds", "8") == {"order": "fifo", "lease_seconds": 8.0}
        assert answer("purge", "--yes") == {"deleted": 0}
        assert answer("configure")["order"] == "fifo"
        assert answer("configure", "--forget") == {}
        assert answer("configure") == {}

    def test_a_new_queue_has_those_of_its_url(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'new.db'}"
        fails(2, "max_age_seconds: ", "table", "create", f"{url}?max_age_seconds=-1")
        assert not (tmp_path / "new.db").exists()
        for _ in range(2):
            assert freshq("table", "create", f"{url}?order=fifo&max_age_seconds=50").exit_code == 0
        assert answer("configure", "--queue", url) == {"order": "fifo", "max_age_seconds": 50.0}
        assert freshq("table", "create", f"{url}?lease_seconds=9").exit_code == 0
        assert answer("configure", "--queue", url)["lease_seconds"] == 9
        fails(
            1,
            "order: queue 'default' is configured with fifo, not lifo",
            "table",
            "create",
            f"{url}?order=lifo",
        )


def test_shards_are_stored_on_dynamodb(moto_client: DynamoDBClient) -> None:
    assert freshq("table", "create", "dynamodb://Sharded?shards=4").exit_code == 0
    Queue.dynamodb("Sharded", moto_client, shards=4).put_many([{"payload": number} for number in range(12)])
    claims = answer("claim", "--limit", "12", "--queue", "dynamodb://Sharded")
    assert sorted(claim["payload"] for claim in claims) == list(range(12))
    fails(2, "shards: ", "configure", "--shards", "0", "--queue", "dynamodb://Sharded")


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
        assert freshq("table", "create", f"{url}?order=fifo").exit_code == 0
        assert self.kept_seconds(url) == 90
        assert freshq("table", "create", f"{url}?history=on").exit_code == 0
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
