"""The commands on an attached table: `dynamodb://TABLE?key=NAME`."""

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, TaskStatus
from freshq.addresses import open_queue
from freshq.stores.dynamodb.attached import attach
from freshq.stores.dynamodb.key import KeyPart, TableKey
from tests.contract.test_attach import dead, in_work
from tests.support.attached import Shipments
from tests.support.readings import ids, known
from tests.unit.cli.test_cli_verbs import answer, fails, freshq


@pytest.fixture
def shipments(account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Shipments:
    """Return an attached table with three records; FRESHQ_QUEUE names it."""
    table = Shipments(account_client)
    table.create_attached()
    table.add("A", "B", "C")
    monkeypatch.setenv("FRESHQ_QUEUE", f"dynamodb://{table.table}?key=id")
    monkeypatch.setattr(attach, "default_client", lambda: account_client)
    return table


@pytest.fixture
def queue(shipments: Shipments) -> AttachedQueue:
    return shipments.queue()


def status_of(queue: AttachedQueue, record_id: str) -> TaskStatus:
    task = known(queue, record_id)
    return task.status


class TestAddress:
    def test_it_opens_the_attached_queue_with_its_options(self, shipments: Shipments) -> None:
        opened = open_queue(f"dynamodb://{shipments.table}?key=id&name=mail&lease_seconds=7")
        assert isinstance(opened, AttachedQueue)
        assert (opened.name, opened.admin.config.lease_seconds) == ("mail", 7)
        opened.put(None, task_id="A")
        assert ids(shipments.queue(name="mail").claim()) == ["A"]

    @pytest.mark.usefixtures("shipments")
    def test_another_key_than_the_tables_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, shipments: Shipments
    ) -> None:
        monkeypatch.setenv("FRESHQ_QUEUE", f"dynamodb://{shipments.table}?key=other")
        fails(2, "key: ", "stats")

    def test_a_table_that_is_not_attached_is_not_an_empty_queue(
        self, monkeypatch: pytest.MonkeyPatch, shipments: Shipments
    ) -> None:
        other = Shipments(shipments.client)
        other.create()
        monkeypatch.setenv("FRESHQ_QUEUE", f"dynamodb://{other.table}?key=id")
        fails(3, "freshq table attach", "stats")


class TestLife:
    def test_a_record_is_put_claimed_and_done(self, shipments: Shipments, queue: AttachedQueue) -> None:
        assert answer("put", "--task-id", "A", "--priority", "3") == {"task_id": "A", "outcome": "CREATED"}
        (claim,) = answer("claim")
        assert answer("complete", claim["task_id"], "--token", claim["token"])["status"] == "SUCCESS"
        assert status_of(queue, "A") is TaskStatus.SUCCESS
        shipments.assert_untouched("A", "B", "C")

    def test_a_record_that_does_not_exist_is_not_said_to_be_in_no_queue(self, queue: AttachedQueue) -> None:
        assert queue.get("Z") is None
        for command in (["get", "Z"], ["touch", "Z"], ["bury", "Z"], ["restore", "Z"], ["cancel", "Z"]):
            fails(1, "record 'Z': the attached table has none", *command)
        assert "record 'Z': the attached table has none" in freshq("shell", text="id Z\n").stderr

    @pytest.mark.usefixtures("shipments")
    def test_a_record_is_its_own_payload(self) -> None:
        fails(
            2,
            "payload: must be None, because the record itself is the payload",
            "put",
            "{}",
            "--task-id",
            "A",
        )
        fails(2, "task_id: required, the id of a record", "put")
        fails(1, "record 'Z': the attached table has none", "put", "--task-id", "Z")


class TestIds:
    """A number, or a pair, on the command line."""

    @pytest.fixture
    def orders(self, account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Shipments:
        """Return an attached table with a numeric hash key and a range key; FRESHQ_QUEUE names it."""
        table = Shipments(account_client, key=TableKey(KeyPart("customer", "N"), KeyPart("order")))
        table.create_attached()
        table.add("7/a%2Fb", "-7/100%25")
        monkeypatch.setenv("FRESHQ_QUEUE", f"dynamodb://{table.table}?key=customer")
        monkeypatch.setattr(attach, "default_client", lambda: account_client)
        return table

    def test_a_pair_is_put_claimed_listed_and_done(self, orders: Shipments) -> None:
        for given, kept in (("7.0/a%2fb", "7/a%2Fb"), ("-7/100%25", "-7/100%25")):
            assert answer("put", "--task-id", given)["task_id"] == kept
        assert sorted(task["task_id"] for task in answer("list")["tasks"]) == ["-7/100%25", "7/a%2Fb"]
        assert [task["task_id"] for task in answer("peek")["tasks"]] == ["7/a%2Fb", "-7/100%25"]
        (claim,) = answer("claim")
        assert answer("complete", claim["task_id"], "--token", claim["token"])["status"] == "SUCCESS"
        assert freshq("cancel", "--", "-7/100%25").exit_code == 0
        assert orders.own("-7/100%25")["freshq_taskStatus"] == {"S": "CANCELLED"}

    @pytest.mark.usefixtures("orders")
    def test_what_is_wrong_with_an_id_is_said(self) -> None:
        for given, problem in (("7", "CUSTOMER/ORDER"), ("x/a", "customer is not a number"), ("7/", "empty")):
            fails(2, problem, "put", "--task-id", given)
            fails(2, problem, "get", given)
        fails(1, "record '8/a': the attached table has none", "put", "--task-id", "8/a")

    def test_the_shell_keeps_the_current_one(self, orders: Shipments) -> None:
        shell = freshq("shell", text="id 7/a%2Fb\nhold\nready\nenqueue\nclaim\nfail\ndlq ls\n")
        assert shell.exit_code == 0, shell.stderr
        assert orders.own("7/a%2Fb")["freshq_taskStatus"] == {"S": "FAILURE"}


class TestHoldAndReady:
    def test_a_held_record_cannot_be_put_until_it_is_ready(self, queue: AttachedQueue) -> None:
        assert answer("record", "hold", "A")["status"] == "UNDER_CONSTRUCTION"
        fails(1, "make it ready first", "put", "--task-id", "A")
        assert "A: READY" in freshq("record", "ready", "A").stdout
        answer("put", "--task-id", "A")
        assert status_of(queue, "A") is TaskStatus.PENDING

    def test_a_finished_record_can_be_put_again(self, queue: AttachedQueue) -> None:
        queue.complete(in_work(queue))
        fails(1, "SUCCESS", "put", "--task-id", "A")
        answer("record", "ready", "A")
        answer("put", "--task-id", "A")
        assert status_of(queue, "A") is TaskStatus.PENDING

    @pytest.mark.parametrize("command", ["hold", "ready"])
    def test_not_while_it_is_in_the_queue(self, queue: AttachedQueue, command: str) -> None:
        queue.put(task_id="A")
        fails(1, "PENDING", command, "A")
        fails(1, "record 'Z': the attached table has none", command, "Z")
        fails(2, "task_id: missing", command)


class TestDeadLetters:
    def test_dead_letters_are_claimed_and_settled(self, queue: AttachedQueue) -> None:
        for record_id in ("A", "B"):
            dead(queue, record_id)
        first, second = answer("claim", "--dead", "--limit", "5", "--lease-seconds", "30")
        answer("release", first["task_id"], "--token", first["token"], "--delay-seconds", "60")
        answer("fail", second["task_id"], "--token", second["token"], "--error", "as it was")
        assert status_of(queue, first["task_id"]) is TaskStatus.PENDING
        assert status_of(queue, second["task_id"]) is TaskStatus.FAILURE
        assert queue.claim() == []

    @pytest.mark.usefixtures("shipments")
    def test_without_dead_letters_it_is_refused_and_a_wrong_limit_is_wrong_use(self) -> None:
        fails(1, "has no dead letter to claim", "claim", "--dead")
        fails(2, "limit: ", "claim", "--dead", "--limit", "0")
        fails(2, "wait_seconds: not with dead", "claim", "--dead", "--wait-seconds", "1")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("hold A", "hold"),
        ("ready A", "ready"),
        ("claim --dead", "claim --dead"),
        ("record get A", "record get"),
        ("record put {}", "record put"),
        ("record delete A --yes", "record delete"),
        ("list --status ready", "list --status READY"),
    ],
)
def test_other_tables_refuse_these_commands(
    monkeypatch: pytest.MonkeyPatch, command: str, named: str
) -> None:
    monkeypatch.setenv("FRESHQ_QUEUE", "memory://")
    fails(2, f"{named}: only on an attached table", *command.split())


def test_the_shell_has_these_commands(queue: AttachedQueue) -> None:
    dead(queue, "C")
    walk = "id A, reset, ready, enqueue, claim, done, ready, enqueue B, hold B, hold, dlq claim, release"
    shell = freshq("shell", text=walk.replace(", ", "\n"))
    assert shell.exit_code == 1
    assert "'B': cannot hold a task that is PENDING" in shell.stderr
    assert shell.stderr.count("\n") == 1, shell.stderr
    assert [status_of(queue, record_id).value for record_id in "ABC"] == [
        "UNDER_CONSTRUCTION", "PENDING", "PENDING",
    ]  # fmt: skip


class TestRecordsInNoQueue:
    @pytest.mark.usefixtures("shipments")
    def test_they_have_no_times_and_are_listed_by_their_state(self) -> None:
        shown = freshq("get", "A").stdout
        assert "READY, in no queue" in shown
        assert "ago" not in shown
        first = answer("list", "--status", "ready", "--limit", "2")
        rest = answer("list", "--status", "READY", "--cursor", first["cursor"])
        assert sorted(task["task_id"] for page in (first, rest) for task in page["tasks"]) == ["A", "B", "C"]
        (row, *_) = [
            line for line in freshq("list", "--status", "ready").stdout.splitlines() if "READY" in line
        ]
        assert row.split()[1:5] == ["READY", "0", "0", "-"]

    def test_the_shell_makes_test_records_and_overwrites_none(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        shipments.add("A-101")
        shell = freshq("shell", text="create-test\ncreate-test\nenqueue A-202\n")
        assert (shell.exit_code, shell.stderr) == (0, "")
        assert "record A-101: READY, existed already\nrecord A-202: UNDER_CONSTRUCTION\n" in shell.stdout
        assert shell.stdout.count("existed already") == 5
        shipments.assert_untouched("A-101")
        assert status_of(queue, "A-202") is TaskStatus.PENDING


class TestRecords:
    def test_they_are_written_read_and_deleted(self, queue: AttachedQueue) -> None:
        assert answer("record", "put", '{"id": "N", "n": 1, "m": 2}') == {"record_id": "N"}
        assert answer("record", "put", "--merge", "-", text='{"id": "N", "n": 3}') == {"record_id": "N"}
        assert answer("record", "get", "N") == {"id": "N", "n": 3, "m": 2}
        queue.put(task_id="N")
        fails(2, "pass --yes", "record", "delete", "N")
        fails(1, "already PENDING in queue 'default'", "record", "delete", "N", "--yes")
        assert answer("record", "delete", "N", "--force", "--yes") == {"deleted": 1}
        for command in (["get", "N"], ["delete", "N", "--yes"]):
            fails(1, "record 'N': the attached table has none", "record", *command)

    @pytest.mark.usefixtures("shipments")
    def test_what_is_no_record_is_refused(self) -> None:
        fails(2, "record: must be a JSON object, got list", "record", "put", "[]")
        fails(2, "record: must be JSON", "record", "put", "{")
        fails(2, "record: must have the table's key id (S)", "record", "put", "--merge", '{"x": 1}')


@pytest.mark.usefixtures("shipments")
def test_order_and_shards_are_those_of_the_attachment() -> None:
    fails(2, "order: cannot be stored with this queue", "configure", "--order", "lifo")
    shown = answer("configure", "--max-attempts", "2")
    assert shown["max_attempts"] == {"value": 2, "source": "stored"}
    assert not {"order", "shards"} & shown.keys()
