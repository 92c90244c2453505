"""Groups on DynamoDB: claims find the groups with work without a query per group, and miss none."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from local.faults import counted, meanwhile, refused
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, Queue, StoreError
from freshq.queue.core import core_of
from freshq.stores.dynamodb import line_records
from freshq.stores.dynamodb.calls import TableCalls
from freshq.stores.dynamodb.items import Keyspace, encode
from freshq.stores.dynamodb.line_records import LINE_PREFIX, LineRules, closing_item, line_record
from freshq.stores.lines import Line
from tests.conftest import StoreUnderTest, on_table
from tests.support.dynamodb_double import DynamoDBDouble, Tables
from tests.support.readings import known

# Maximum number of calls of an empty claim.
MAX_EMPTY_CALLS = 10
# After this time a closing is overdue by every clock.
LONG_SECONDS = 120.0


@pytest.fixture
def double_store() -> StoreUnderTest:
    """Return a store on the double of DynamoDB."""
    client: Any = DynamoDBDouble(Tables(time.time))
    return on_table("dynamodb_double", client)


@pytest.fixture
def _list_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each claim read the list of announced lines."""
    monkeypatch.setattr(line_records, "LIST_SECONDS", 0.0)


def write(table: StoreUnderTest, items: list[Any]) -> None:
    """Write items with the calls of a bulk load."""
    assert table.client is not None
    for start in range(0, len(items), 25):
        requests: list[Any] = [{"PutRequest": {"Item": item}} for item in items[start : start + 25]]
        table.client.batch_write_item(RequestItems={str(table.table): requests})


def line_items(table: StoreUnderTest) -> list[str]:
    """Return the ids of the line records and closings in the table."""
    assert table.client is not None
    found = table.client.scan(TableName=str(table.table))["Items"]
    return [item["taskId"]["S"] for item in found if item["taskId"]["S"].startswith(LINE_PREFIX)]


def put_groups(table: StoreUnderTest, groups: int, tasks: int = 1) -> None:
    """Put tasks into each of some groups, ten seconds ago."""
    queue = table.queue()
    queue.put("first", task_id="first", group="g0")
    task = known(queue, "first")
    now = table.clock.now
    items: list[Any] = [
        line_record("default", Line(0, f"g{group}"), now, task.stale_at) for group in range(groups)
    ]
    for group in range(groups):
        fields = encode(task, Keyspace(1))
        for number in range(tasks):
            changed = {"taskId": {"S": f"{group}-{number}"}, "taskGroup": {"S": f"g{group}"}}
            shard = {"pendingShard": {"S": Keyspace(1).partition("default", 0, f"g{group}", "", 0)}}
            items.append(fields | changed | shard)
    write(table, items)
    queue.cancel("first")
    table.clock.advance(10)


def calls_of_claims(table: StoreUnderTest) -> tuple[int, int]:
    """Return the calls of a claim of 1 and of one of 10, of a process that has listed the lines."""
    assert table.client is not None
    queue = table.queue()
    queue.claim()
    with counted(table.client) as small:
        assert len(queue.claim()) == 1
    with counted(table.client) as large:
        assert len(queue.claim(10)) == 10
    return len(small), len(large)


@pytest.mark.usefixtures("read_once")
def test_claims_beside_many_groups_cost_twice_the_calls_of_one_and_a_query_for_each_group(
    table_store: StoreUnderTest, dynamodb_local: DynamoDBClient
) -> None:
    put_groups(table_store, 1, tasks=25)
    alone = calls_of_claims(table_store)
    for groups in (100, 1000):
        table = on_table("dynamodb_local", dynamodb_local)
        put_groups(table, groups)
        small, large = calls_of_claims(table)
        assert small <= 2 * alone[0]
        assert large <= 2 * alone[1] + 10


def test_a_claim_takes_a_task_of_each_of_many_groups_once(table_store: StoreUnderTest) -> None:
    put_groups(table_store, 150)
    queue = table_store.queue()
    shown = [waiting.task.task_id for waiting in queue.peek(150)]
    claims = queue.claim(150)
    assert len({claim.task.group for claim in claims}) == len(claims) == len({*shown}) == 150
    assert not claims.more


def test_a_new_group_has_its_turn_beside_many(table_store: StoreUnderTest) -> None:
    put_groups(table_store, 150, tasks=3)
    queue = table_store.queue()
    served = [claim.task.group for _ in range(10) for claim in queue.claim(5)]
    assert len({*served}) == 50
    table_store.queue().put("new", group="zzz")
    table_store.queue().put("new", group="a")
    table_store.clock.advance(5)
    core_of(queue).store.reread_lines("default")
    later = [claim.task.group for _ in range(24) for claim in queue.claim(5)]
    assert {"zzz", "a"} <= {*later}


def test_lower_levels_wait_while_a_claim_leaves_out_higher_lines(
    table_store: StoreUnderTest,
) -> None:
    queue, other = table_store.queue(), table_store.queue()
    other.put_many([{"payload": "high", "group": f"g{number:02}", "priority": 9} for number in range(21)])
    other.put("low")
    assert [claim.task.priority for claim in queue.claim()] == [9]  # which lists the lines
    assert len(other.claim(19)) == 19
    answers = [queue.claim() for _ in range(20)]
    assert answers[0].more
    assert not answers[0]
    assert [claim.task.priority for claims in answers for claim in claims] == [9, 0]


def drain(queue: Queue) -> int:
    done = 0
    while claims := queue.claim(10):
        done += len([queue.complete(claim) for claim in claims])
    return done


class TestDone:
    def test_an_empty_claim_after_many_groups_are_done_makes_few_calls(
        self, table_store: StoreUnderTest, dynamodb_local: DynamoDBClient
    ) -> None:
        put_groups(table_store, 60)
        queue = table_store.queue()
        assert drain(queue) == 60
        for process in (queue, table_store.queue(), table_store.queue()):
            with counted(dynamodb_local) as calls:
                assert process.claim(10) == []
            assert len(calls) <= MAX_EMPTY_CALLS
        assert len([item for item in line_items(table_store) if "closing" not in item]) == 0

    def test_so_it_does_if_whoever_did_them_died(
        self, table_store: StoreUnderTest, dynamodb_local: DynamoDBClient
    ) -> None:
        far = table_store.clock.now + 3600
        table_store.queue().put("work", group="last")
        records = [line_record("default", Line(0, f"g{number}"), far - 3600, far) for number in range(1000)]
        write(table_store, records)
        queue = table_store.queue()
        found: list[Claim] = []
        for _ in range(5):
            with counted(dynamodb_local) as calls:
                found += queue.claim()
            assert len(calls) <= MAX_EMPTY_CALLS + 2 * len(found)

    @pytest.mark.usefixtures("_list_always")
    def test_the_next_put_is_noticed_by_every_process(self, table_store: StoreUnderTest) -> None:
        put_groups(table_store, 12)
        first, second = table_store.queue(), table_store.queue()
        assert drain(first) == 12
        assert second.claim() == []
        table_store.queue().put("again", group="g7")
        (claim,) = second.claim()
        assert claim.task.payload == "again"

    @pytest.mark.usefixtures("_list_always")
    @pytest.mark.parametrize("groups", [1, 12])
    def test_so_it_is_while_none_of_them_is_quiet_yet(
        self, table_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, groups: int
    ) -> None:
        monkeypatch.setattr(line_records, "EMPTY_CHECK_SECONDS", 0.0)
        monkeypatch.setattr(line_records, "QUIET_SECONDS", 3600.0)
        producer, worker = table_store.queue(), table_store.queue()
        producer.put_many([{"payload": "work", "group": f"g{number}"} for number in range(groups)])
        assert drain(worker) == groups
        assert len(line_items(table_store)) == groups  # so the next put announces nothing
        table_store.queue().put("again", group=f"g{groups - 1}")
        (claim,) = worker.claim()
        assert claim.task.payload == "again"

    @pytest.mark.usefixtures("_list_always")
    def test_upkeep_removes_what_is_left_of_them(self, table_store: StoreUnderTest) -> None:
        put_groups(table_store, 30)
        assert drain(table_store.queue()) == 30
        assert line_items(table_store)
        table_store.clock.advance(LONG_SECONDS)
        table_store.queue().admin.recover()
        assert line_items(table_store) == []

    def test_a_group_whose_tasks_come_often_stays_announced(self, table_store: StoreUnderTest) -> None:
        queue = table_store.queue()
        for number in range(3):
            queue.put(number, group="busy")
            assert [claim.task.payload for claim in queue.claim()] == [number]
        assert queue.claim() == []
        assert len(line_items(table_store)) == 1


class TestNothingIsForgotten:
    @pytest.mark.usefixtures("_list_always")
    def test_a_put_while_its_line_is_closed_is_found_before_the_recheck(
        self, double_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(line_records, "EMPTY_CHECK_SECONDS", 0.0)
        put_groups(double_store, 1)
        worker, producer = double_store.queue(), double_store.queue()
        assert double_store.client is not None
        deletion = "BatchWriteItem"
        with meanwhile(double_store.client, deletion, lambda: producer.put("meanwhile", group="g0")):
            assert len(worker.claim()) + len(worker.claim()) == 1
        assert [item for item in line_items(double_store) if "closing" not in item] == []
        assert [claim.task.payload for claim in worker.claim()] == ["meanwhile"]
        assert len([item for item in line_items(double_store) if "closing" not in item]) == 1

    @pytest.mark.usefixtures("_list_always")
    def test_a_throttled_table_keeps_no_claim_from_its_task_nor_empty_lines_for_ever(
        self, double_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(line_records, "EMPTY_CHECK_SECONDS", 3600.0)
        far = double_store.clock.now + 3600
        lines = [Line(0, f"g{number}") for number in range(60)]
        write(double_store, [line_record("default", line, far - 3600, far) for line in lines])
        worker, producer, client = double_store.queue(), double_store.queue(), double_store.client
        assert client is not None
        producer.put("first", group="g0")
        claims = [claim for _ in range(30) for claim in worker.claim()]  # it meets every empty line
        for name in ("EMPTY_CHECK_SECONDS", "QUIET_SECONDS"):
            monkeypatch.setattr(line_records, name, 0.0)
        for number in range(2):
            producer.put(number)
            code = "ProvisionedThroughputExceededException"
            with refused(client, "Query", code=code, let_pass=30, times=1):
                claims += worker.claim()
        claims += [*worker.claim(), *worker.claim()]
        assert len(claims) == 3
        assert "checked later" in caplog.text
        assert [item for item in line_items(double_store) if "closing" not in item] == []

    @pytest.mark.parametrize("answers", range(4))
    def test_a_query_that_fails_in_the_first_claim_of_a_process_fails_no_later_claim(
        self, table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, answers: int
    ) -> None:
        put_groups(table_store, 3)
        worker, code = table_store.queue(), "ProvisionedThroughputExceededException"
        fails_once = refused(dynamodb_local, "Query", code=code, let_pass=answers, times=1)
        with fails_once, pytest.raises(StoreError):
            worker.claim()
        assert len(worker.claim()) == 1

    def test_a_put_while_its_line_is_closed_by_upkeep_that_took_longer_than_clocks_differ(
        self, double_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker, client, clock = double_store.queue(), double_store.client, double_store.clock
        assert client is not None
        worker.put("first", group="g0")
        assert drain(worker) == 1
        for name in ("EMPTY_CHECK_SECONDS", "QUIET_SECONDS"):
            monkeypatch.setattr(line_records, name, 0.0)

        def look_and_put() -> None:
            double_store.queue().admin.recover()
            double_store.queue().put("meanwhile", group="g0")

        slow = meanwhile(client, "Query", lambda: clock.advance(LONG_SECONDS))
        with slow, meanwhile(client, "BatchWriteItem", look_and_put):
            worker.admin.recover()
        clock.advance(LONG_SECONDS)
        double_store.queue().admin.recover()
        assert [claim.task.payload for claim in double_store.queue().claim()] == ["meanwhile"]

    def test_claims_without_other_upkeep_look_into_the_lines_of_many_closings(
        self, double_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = double_store.clock

        def elapsed() -> Any:
            since = clock.now
            return SimpleNamespace(seconds=lambda: clock.now - since)

        monkeypatch.setattr(line_records, "ElapsedTime", elapsed)
        monkeypatch.setattr(line_records, "CLAIM_RECHECK_SECONDS", 0.0)
        put_groups(double_store, 1)
        worker = double_store.queue()
        assert drain(worker) == 1
        lines = [Line(0, f"g{number}") for number in range(100)]
        write(double_store, [closing_item("default", [line], clock.now) for line in lines])
        assert worker.claim() == []  # gets to know the closings
        clock.advance(line_records.RULES.recheck_after_seconds)
        for _ in range(15):
            assert worker.claim() == []
        assert line_items(double_store) == []

    def test_a_claim_serves_while_the_closings_cannot_be_read(
        self, double_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(line_records, "CLAIM_RECHECK_SECONDS", 0.0)
        put_groups(double_store, 2)
        worker = double_store.queue()
        assert len(worker.claim()) == 1

        def no_answer(*_arguments: Any) -> None:
            raise StoreError("no answer")

        monkeypatch.setattr(line_records.LineClosings, "recheck", no_answer)
        double_store.clock.advance(20)  # so the claim does its upkeep first
        assert len(worker.claim()) == 1
        assert "closed lines are checked later" in caplog.text

    def test_a_put_that_trusted_a_record_that_was_taken_away(
        self, table_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The producer breaks its promise: it never looks at the record again.
        monkeypatch.setattr(LineRules, "may_put", lambda _rules, _age_seconds: True)
        monkeypatch.setattr(LineRules, "put_was_late", lambda _rules, _age_seconds: False)
        producer, worker = table_store.queue(), table_store.queue()
        producer.put("first", group="g")
        table_store.clock.advance(10)
        assert drain(worker) == 1
        producer.put("second", group="g")
        table_store.clock.advance(LONG_SECONDS)
        other = table_store.queue()
        assert other.claim() == []
        other.admin.recover()
        table_store.clock.advance(LONG_SECONDS)
        assert [claim.task.payload for claim in table_store.queue().claim(2)] == ["second"]

    def test_a_put_that_took_long_looks_at_the_record_again(
        self, table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at_once = LineRules(trust_seconds=3600, send_seconds=1, landing_seconds=-3600, index_lag_seconds=1)
        monkeypatch.setattr(line_records, "RULES", at_once)
        producer = table_store.queue()
        producer.put("first", group="g")
        (record,) = line_items(table_store)

        def forget() -> None:
            key: Any = {"taskId": {"S": record}}
            dynamodb_local.delete_item(TableName=str(table_store.table), Key=key)

        with meanwhile(dynamodb_local, "PutItem", forget):
            producer.put("second", group="g")
        assert line_items(table_store) == [record]

    def test_a_closing_that_fails_leaves_the_claim_alone(
        self, table_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        put_groups(table_store, 3)
        queue = table_store.queue()

        def no_answer(*_arguments: Any) -> None:
            raise StoreError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(TableCalls, "delete_many", no_answer)
            assert len(queue.claim(10)) == 3
        assert "3 empty lines" in caplog.text
        assert len([item for item in line_items(table_store) if "closing" not in item]) == 3
