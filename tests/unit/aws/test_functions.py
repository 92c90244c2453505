"""The handlers in an account: effects, rejected events, and failures that never look like success."""

import copy
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import boto3
import pytest

from freshq import Busy, Claim, Queue, StoreError
from freshq.aws import observability, producer
from freshq.aws.archive import Archive
from freshq.aws.producer import LoadReport
from freshq.aws.wakeup import PASSES_UNDER_WAY
from freshq.errors import PutIncomplete, TableMissing, Throttled
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.groups import GroupRule, GroupRules
from freshq.queue.core import core_of
from freshq.stores.dynamodb.passes import WorkerPasses
from tests.conftest import Clock
from tests.support.function_chain import ring_event
from tests.support.functions import EVENTS, Context, load_event
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused
from tests.support.table_clock import Ahead
from tests.template.test_template import of_type
from tests.unit.conftest import Application

# Powertools warns if a handler raises before its first metric.
nothing_to_measure = pytest.mark.filterwarnings("ignore:No application metrics to publish")


def hops(application: Application, topic_arn: str) -> list[tuple[int, str]]:
    """Return the hop and the reason of each ring of a topic."""
    return [(sent["hop"], sent["reason"]) for sent in application.rings(topic_arn)]


def pass_slots(application: Application) -> WorkerPasses:
    return WorkerPasses("QueueTable", application.queue.name)


@pytest.fixture
def occupied(application: Application) -> Iterator[None]:
    """Make a worker pass under way."""
    with pass_slots(application).slot("somebody else") as entered:
        assert entered
        yield


def before_leaving(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when a pass has claimed for the last time, and still has its slot."""
    leave = WorkerPasses._leave

    def leave_late(self: WorkerPasses, slot_id: str, holder: str) -> None:
        act()
        leave(self, slot_id, holder)

    monkeypatch.setattr(WorkerPasses, "_leave", leave_late)


class TestCreateTasks:
    def test_a_count_without_a_rate_is_put_at_once(self, application: Application) -> None:
        answer = application.invoke("create_tasks", {"count": 30})
        assert (answer["requested"], answer["created"], answer["stopped_early"]) == (30, 30, False)
        assert application.queue.stats().pending == 30

    def test_the_answer_has_the_pressure_on_the_queue(self, application: Application) -> None:
        answer = application.invoke("create_tasks", {"count": 30})
        assert answer["turned_away"] == {}
        assert answer["pressure"]["offered_per_second"] > 0
        assert answer["pressure"]["probability_in_time"] == 1.0
        assert answer["pressure"]["retry_after_seconds"] is None

    def test_tasks_turned_away_by_a_full_backlog_are_counted(self, application: Application) -> None:
        application.configure(backlog=BacklogLimit(10, WhenFull.REFUSE_NEWEST))
        answer = application.invoke("create_tasks", {"count": 30})
        assert (answer["created"], answer["turned_away"], answer["failed"]) == (10, {"overflow": 20}, 0)
        assert "try again in" in answer["errors"][0]["error"]

    @pytest.mark.parametrize(
        ("event", "created"),
        [
            ({"count": 5, "rate_per_second": 100, "duration_seconds": 10}, 5),
            ({"count": 500, "rate_per_second": 50, "duration_seconds": 0.1}, 5),
            ({"rate_per_second": 50, "duration_seconds": 0.2}, 10),
            ({"count": 10, "duration_seconds": 0.1}, 10),
            ({"count": 10, "rate_per_second": 100}, 10),
            ({"duration_seconds": 0.5}, 5),
        ],
    )
    def test_a_load_is_described_by_its_figures(
        self, application: Application, event: dict[str, Any], created: int
    ) -> None:
        assert application.invoke("create_tasks", event)["created"] == created

    def test_given_tasks_are_put_and_each_outcome_is_counted(self, application: Application) -> None:
        tasks = [
            {"task_id": "a", "payload": {"n": 1}, "priority": 3, "group": "g"},
            {"task_id": "a", "payload": {"n": 2}},
            {"payload": 3, "delay_seconds": -1},
            "no task",
        ]
        answer = application.invoke("create_tasks", {"tasks": tasks})
        counted = {name: answer[name] for name in ("requested", "created", "duplicates", "refused", "failed")}
        assert counted == {"requested": 4, "created": 1, "duplicates": 1, "refused": 2, "failed": 0}
        assert [error["index"] for error in answer["errors"]] == [2, 3]
        assert "do not fail the invocation" in answer["note"]
        assert "delay_seconds: " in answer["errors"][0]["error"]
        assert "must be a mapping" in answer["errors"][1]["error"]

    def test_it_stops_before_the_timeout_and_says_so(self, application: Application) -> None:
        """The remaining time shrinks with each reading, independent of the machine's speed."""
        left_ms = iter(range(10_500, 0, -100))
        context = Context()
        context.get_remaining_time_in_millis = lambda: next(left_ms)  # type: ignore[method-assign]
        answer = application.invoke("create_tasks", {"rate_per_second": 20, "duration_seconds": 60}, context)
        assert answer["stopped_early"]
        assert answer["created"] + answer["not_attempted"] == answer["requested"] == 1200
        assert 0 < answer["created"] <= 5 * 25

    def test_the_answer_has_the_ids_that_it_generated(self, application: Application) -> None:
        event = {"tasks": [{"payload": 1}, {"task_id": "mine", "payload": 2}, {"priority": -1}]}
        answer = application.invoke("create_tasks", event)
        generated, given, invalid = answer["task_ids"]
        assert (given, invalid, answer["not_written"]) == ("mine", None, [])
        assert application.queue.get(generated).payload == 1  # type: ignore[union-attr]

    @pytest.mark.parametrize("task_id", ["7e84259d-47ad-4fcc-ac20-06bc09e68bee", "\u00e4\u20ac\t" * 70])
    def test_an_answer_fits_whatever_the_number_of_tasks(self, task_id: str) -> None:
        """Lambda fails an invocation whose answer has more than 6 MB."""
        ids: list[str | None] = [f"{task_id}-{number}" for number in range(150_000)]
        report = LoadReport(150_000, created=100_000, task_ids=ids, not_written=[*range(100_000, 150_000)])
        answer = report.answer
        assert len(json.dumps(answer)) < 6_000_000
        listed = answer["task_ids"]
        assert 1000 < len(listed) < 150_000
        assert listed == ids[: len(listed)]
        assert f"task_ids lists the first {len(listed)} of 150000" in answer["note"]
        assert "not_written" not in answer["note"]
        assert (answer["created"], len(answer["not_written"])) == (100_000, 50_000)

    def test_a_capped_answer_says_so_beside_the_refused_tasks(
        self, application: Application, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producer, "MAX_LISTED_BYTES", 12)
        tasks = [{"payload": 1, "task_id": task_id} for task_id in "abcd"] + [{"priority": -1}]
        answer = application.invoke("create_tasks", {"tasks": tasks})
        assert (answer["created"], answer["task_ids"]) == (4, ["a", "b"])
        assert "do not fail the invocation" in answer["note"]
        assert "task_ids lists the first 2 of 5" in answer["note"]

    @pytest.mark.parametrize("event", [{"tasks": [{"payload": 1}] * 3}, {"count": 3}])
    def test_an_invocation_that_lambda_repeats_creates_no_task_twice(
        self, application: Application, event: dict[str, Any]
    ) -> None:
        context = Context()
        assert application.invoke("create_tasks", event, context)["created"] == 3
        again = application.invoke("create_tasks", event, context)
        assert (again["created"], again["duplicates"]) == (0, 3)
        assert application.queue.stats().pending == 3

    @pytest.mark.parametrize(
        ("event", "named"),
        [
            ({"tasks": [{"payload": 1}, {"task_id": "lost", "payload": 2}]}, '"task_id": "lost"'),
            ({"count": 2}, "1 of 2 tasks were not written"),
        ],
    )
    def test_a_partial_failure_fails_and_names_the_tasks(
        self,
        application: Application,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        event: dict[str, Any],
        named: str,
    ) -> None:
        """Nobody reads the answer of a scheduled invocation: Lambda repeats it only if it fails."""
        put_many = Queue.put_many

        def lose_the_last(queue: Queue, tasks: Any, **options: Any) -> Any:
            receipts = put_many(queue, tasks[:-1], **options)
            raise PutIncomplete([*receipts, Throttled("the table is throttled")])

        monkeypatch.setattr(Queue, "put_many", lose_the_last)
        with pytest.raises(StoreError, match=f"1 of 2 tasks were not written.*{named}|{named}"):
            application.invoke("create_tasks", event)
        (metrics,) = [line for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
        assert json.loads(metrics)["TasksNotWritten"] == [1.0]
        assert application.queue.stats().pending == 1

    def test_given_tasks_that_time_did_not_suffice_for_are_a_failure(self, application: Application) -> None:
        with pytest.raises(StoreError):
            application.invoke("create_tasks", {"tasks": [{"payload": 1}]}, Context(remaining_seconds=5))

    @nothing_to_measure
    def test_a_long_field_name_is_cut(self, application: Application) -> None:
        with pytest.raises(ValueError, match="unknown field") as refused:
            application.invoke("create_tasks", {"x" * 1_000_000: 1})
        assert len(str(refused.value)) < 200
        answer = application.invoke("create_tasks", {"tasks": [{"x" * 1_000_000: 1}]})
        assert len(answer["errors"][0]["error"]) < 260

    @nothing_to_measure
    @pytest.mark.parametrize(
        ("event", "message"),
        [
            ({"count": "many"}, "^count: "),
            ({"count": 0}, "^count: "),
            *(({"count": value}, "^count: ") for value in (True, "3", 3.5, [3])),
            *(({"rate_per_second": value, "count": 3}, "^rate_per_second: ") for value in (True, "3")),
            *(({"duration_seconds": value}, "^duration_seconds: ") for value in (True, "3", "nan")),
            ({"rate_per_second": 5}, "^rate_per_second: needs"),
            ({"duration_seconds": 0}, "^duration_seconds: "),
            ({"count": 1, "tasks": []}, "^tasks: give either"),
            ({"tasks": 5}, "^tasks: "),
            ({"colour": "red"}, "^colour: unknown field"),
            ([], "^event: must be a JSON object"),
        ],
    )
    def test_a_malformed_event_is_refused_before_anything_is_written(
        self, application: Application, event: Any, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            application.invoke("create_tasks", event)
        assert application.queue.stats().pending == 0

    @nothing_to_measure
    def test_a_missing_table_is_an_error_that_names_it(self, application: Application) -> None:
        application.set("FRESHQ_TABLE", "NoSuchTable")
        with pytest.raises(TableMissing, match="NoSuchTable"):
            application.invoke("create_tasks", {"tasks": [{"payload": 1}]})
        with pytest.raises(TableMissing):
            application.invoke("create_tasks", {"count": 5})
        assert application.queue.stats().pending == 0


@nothing_to_measure
@pytest.mark.parametrize(
    ("function", "variable", "value"),
    [
        ("create_tasks", "FRESHQ_TABLE", ""),
        ("process_tasks", "FRESHQ_RUNNER", "no.such:runner"),
        ("trigger", "FRESHQ_PROCESS_TASKS_TOPIC_ARN", "not an arn"),
        ("sweep", "FRESHQ_TABLE", ""),
    ],
)
def test_a_wrong_setting_is_named(
    application: Application,
    function: str,
    variable: str,
    value: str,
) -> None:
    application.set(variable, value)
    events = {
        "create_tasks": {},
        "trigger": load_event("trigger-insert"),
        "process_tasks": ring_event({}),
        "sweep": {},
    }
    name = "runner" if variable == "FRESHQ_RUNNER" else variable
    with refused(name):
        application.invoke(function, events[function])


class TestTrigger:
    def test_it_rings_once_for_a_batch_with_an_insert(self, application: Application) -> None:
        assert application.invoke("trigger", load_event("trigger-insert"))["rang"]
        assert hops(application, application.process_tasks_topic_arn) == [(0, "insert")]

    def test_it_does_not_ring_for_other_stream_records(self, application: Application) -> None:
        answer = application.invoke("trigger", load_event("trigger-no-insert"))
        assert (answer["rang"], answer["skipped"]) == (False, "no new claimable tasks")

    @pytest.mark.usefixtures("occupied")
    def test_it_passes_a_tail_call_on_with_its_hop(self, application: Application) -> None:
        assert application.invoke("trigger", load_event("trigger-tail_call"))["rang"]
        assert hops(application, application.process_tasks_topic_arn) == [(3, "tail_call")]

    @pytest.mark.usefixtures("occupied")
    def test_it_does_not_ring_for_new_tasks_while_a_pass_is_under_way(self, application: Application) -> None:
        answer = application.invoke("trigger", load_event("trigger-insert"))
        assert "under way" in answer["skipped"]

    @pytest.mark.parametrize("event", ["trigger-insert", "trigger-tail_call"])
    def test_the_kill_switch_silences_it(self, application: Application, event: str) -> None:
        application.set_switch("stop")
        assert "kill switch" in application.invoke("trigger", load_event(event))["skipped"]
        assert application.rings(application.process_tasks_topic_arn) == []

    @nothing_to_measure
    def test_it_rejects_an_event_without_records(self, application: Application) -> None:
        with refused("event"):
            application.invoke("trigger", {"Records": []})


def taken(queue: Queue) -> Claim:
    (claim,) = queue.claim()
    return claim


# What happens to a task, and whether its last step makes it claimable while no pass may be under way.
STEPS: Final[dict[str, tuple[list[Callable[[Queue], object]], bool]]] = {
    "put": ([lambda queue: queue.put(1, task_id="a")], True),
    "put, and delayed": ([lambda queue: queue.put(1, task_id="a", delay_seconds=60)], False),
    "put over a done task": (
        [
            lambda queue: queue.put(1, task_id="a"),
            lambda queue: queue.complete(taken(queue)),
            lambda queue: queue.put(1, task_id="a", on_conflict="ignore"),
        ],
        True,
    ),
    "put over a stale task": (
        [
            lambda queue: queue.put(1, task_id="a", max_age_seconds=60),
            lambda queue: queue.put(1, task_id="a", on_conflict="ignore"),
        ],
        True,
    ),
    "redriven": (
        [
            lambda queue: queue.put(1, task_id="a"),
            lambda queue: queue.fail(taken(queue)),
            lambda queue: queue.redrive(["a"]),
        ],
        True,
    ),
    "delayed, and then claimable at once": (
        [
            lambda queue: queue.put(1, task_id="a", delay_seconds=7200),
            lambda queue: queue.put(2, task_id="a", on_conflict="update"),
        ],
        True,
    ),
    "changed while it waits": (
        [
            lambda queue: queue.put(1, task_id="a"),
            lambda queue: queue.put(2, task_id="a", on_conflict="update"),
        ],
        True,  # its place is that of the last put
    ),
    "claimed": ([lambda queue: queue.put(1, task_id="a"), taken], False),
    "released": (
        [lambda queue: queue.put(1, task_id="a"), lambda queue: queue.release(taken(queue))],
        False,  # the pass that had it goes on
    ),
}
# After the first step; less than the default max age.
LATER_SECONDS: Final = 1800.0


def matches(pattern: Any, value: Any) -> bool:
    """Return whether a filter of an event source matches, of those that the template has."""
    if isinstance(pattern, dict):
        return all(matches(inner, (value or {}).get(name)) for name, inner in pattern.items())
    return any(
        (value is not None) is rule["exists"] if isinstance(rule, dict) else value == rule for rule in pattern
    )


@pytest.mark.parametrize(("steps", "rings"), STEPS.values(), ids=STEPS)
def test_whatever_makes_a_task_claimable_rings(
    ahead: Ahead, application: Application, steps: list[Callable[[Queue], object]], *, rings: bool
) -> None:
    """Through the filters of the template, too; otherwise it would wait for the sweep, up to a minute."""
    queue, images = cast("Queue", application.queue), list[Any]()
    client: Any = core_of(queue).store.calls.client  # type: ignore[attr-defined]  # of the store on DynamoDB
    for step in steps:
        step(queue)
        images.append(client.get_item(TableName="QueueTable", Key={"taskId": {"S": "a"}})["Item"])
        ahead.seconds += LATER_SECONDS * (step in steps[:1])
    old, new = [None, *images][-2:]
    change = {"NewImage": new, "Keys": {"taskId": {"S": "a"}}} | ({"OldImage": old} if old else {})
    record = {"eventName": "MODIFY" if old else "INSERT", "eventSource": "aws:dynamodb", "dynamodb": change}
    (mapping,) = (
        each
        for name, each in of_type("AWS::Lambda::EventSourceMapping").items()
        if name.startswith("Trigger")
    )
    filters = [json.loads(each["Pattern"]) for each in mapping["FilterCriteria"]["Filters"]]
    if rings:
        assert any(matches(each, record) for each in filters)
    assert application.invoke("trigger", {"Records": [record]})["rang"] is rings


class TestProcessTasks:
    def test_it_works_until_the_queue_is_empty(self, application: Application) -> None:
        application.queue.put_many([{"payload": number} for number in range(10)])
        application.queue.put({"reject": True})
        answer = application.invoke("process_tasks", load_event("process_tasks-doorbell"))
        assert (answer["succeeded"], answer["failed"]) == (10, 1)
        assert answer["claimed"] == 11 + answer["given_back"]
        assert not answer["tail_call"]
        stats = application.queue.stats()
        assert (stats.success, stats.failure, stats.pending, stats.taken) == (10, 1, 0, 0)

    @pytest.fixture(autouse=True)
    def _clock(self, ahead: Ahead, request: pytest.FixtureRequest) -> Iterator[None]:
        """Have the clock, before the application is made."""
        CLOCKS.append(ahead)
        request.getfixturevalue("application")
        yield
        CLOCKS.clear()

    def leave_work(self, application: Application) -> None:
        application.set("FRESHQ_RUNNER", "tests.unit.aws.test_functions:outlast_the_pass")
        application.configure(lease_seconds=3 * PASS_SECONDS)
        application.queue.put_many([{"payload": number} for number in range(40)])

    def test_it_calls_its_successor_if_work_is_left(self, application: Application) -> None:
        self.leave_work(application)
        answer = application.invoke("process_tasks", ring_event({"hop": 4, "reason": "tail_call"}))
        assert answer["tail_call"]
        assert hops(application, application.trigger_topic_arn) == [(5, "tail_call")]
        stats = application.queue.stats()
        assert stats.taken == 0
        assert stats.success == answer["succeeded"] > 0

    def test_a_runner_that_hangs_is_abandoned_at_the_end_of_the_pass(self, application: Application) -> None:
        """After the pass ends, nothing extends the lease."""
        application.queue.put("work", task_id="a")
        application.set("FRESHQ_RUNNER", "tests.unit.aws.test_functions:hang")
        application.configure(settle_seconds=2)
        application.configure(lease_seconds=3 * PASS_SECONDS)
        (ahead,) = CLOCKS
        try:
            answer = application.invoke("process_tasks", ring_event({}))
            assert (answer["claimed"], answer["unfinished"], answer["tail_call"]) == (1, ["a"], False)
            ahead.seconds += 2 * PASS_SECONDS
            assert application.queue.admin.recover() == 1
        finally:
            HANGING.set()
            for thread in threading.enumerate():
                if thread.name == "freshq-run":
                    thread.join(PATIENCE_SECONDS)
            observability.metrics.clear_metrics()
        assert application.queue.stats().pending == 1

    def test_not_after_too_many_hops(self, application: Application) -> None:
        self.leave_work(application)
        application.configure(max_hops=4)
        assert not application.invoke("process_tasks", ring_event({"hop": 4}))["tail_call"]
        assert application.rings(application.trigger_topic_arn) == []

    def test_not_after_a_pass_without_progress(self, application: Application) -> None:
        self.leave_work(application)
        application.set("FRESHQ_RUNNER", "tests.unit.aws.test_functions:busy_to_the_end")
        answer = application.invoke("process_tasks", ring_event({}))
        assert (answer["tail_call"], answer["succeeded"]) == (False, 0)
        assert answer["released"] > 0
        assert application.queue.stats().pending == 40

    def test_the_kill_switch_is_read_before_every_tail_call(self, application: Application) -> None:
        self.leave_work(application)
        application.set("FRESHQ_RUNNER", "tests.unit.aws.test_functions:pull_the_switch")
        answer = application.invoke("process_tasks", ring_event({}))
        assert answer["succeeded"] > 0
        assert not answer["tail_call"]

    def test_the_kill_switch_stops_a_pass_before_it_starts(self, application: Application) -> None:
        application.queue.put("work")
        application.set_switch("stop")
        assert "kill switch" in application.invoke("process_tasks", ring_event({}))["skipped"]
        assert application.queue.stats().pending == 1

    @nothing_to_measure
    def test_a_switch_that_says_neither_is_an_error(self, application: Application) -> None:
        application.set_switch("perhaps")
        with pytest.raises(ValueError, match="kill switch"):
            application.invoke("process_tasks", ring_event({}))

    @pytest.mark.usefixtures("occupied")
    def test_one_pass_at_a_time(self, application: Application) -> None:
        application.queue.put("work")
        assert "under way" in application.invoke("process_tasks", ring_event({}))["skipped"]
        assert application.queue.stats().pending == 1

    def test_a_paused_queue_is_left_alone(self, application: Application) -> None:
        application.queue.put("work")
        application.queue.pause()
        answer = application.invoke("process_tasks", ring_event({}))
        assert (answer["claimed"], answer["tail_call"]) == (0, False)

    @pytest.mark.parametrize("where", [{}, {"group": "new"}, {"priority": 9}])
    def test_a_task_that_comes_after_the_last_claim_has_a_pass(
        self, application: Application, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
    ) -> None:
        """Trigger finds the slot taken, so that the pass must look once more after it has left its slot."""
        skipped = []

        def put_late() -> None:
            application.queue.put("late", **where)
            skipped.append(application.invoke("trigger", load_event("trigger-insert"))["skipped"])

        before_leaving(monkeypatch, put_late)
        answer = application.invoke("process_tasks", ring_event({}))
        assert (skipped, answer["claimed"], answer["tail_call"]) == ([PASSES_UNDER_WAY], 0, True)
        assert hops(application, application.trigger_topic_arn) == [(1, "tail_call")]

    @pytest.mark.parametrize("late", list("abcdefgh"))
    def test_so_has_one_of_a_group_that_the_pass_found_empty(
        self, application: Application, monkeypatch: pytest.MonkeyPatch, late: str
    ) -> None:
        groups = "abcdefgh"
        for group in groups:
            application.queue.put("early", group=group)
        for early in application.queue.claim(len(groups)):
            application.queue.complete(early)
        before_leaving(monkeypatch, lambda: application.queue.put("late", group=late))
        answer = application.invoke("process_tasks", ring_event({}))
        assert (answer["claimed"], answer["tail_call"]) == (0, True)

    def test_unless_another_pass_looks_for_it(
        self, application: Application, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        application.configure(worker_passes=2)
        with pass_slots(application).slot("somebody else", slots=2) as entered:
            assert entered
            with monkeypatch.context() as patch:
                before_leaving(patch, lambda: application.queue.put("late"))
                answer = application.invoke("process_tasks", ring_event({}))
        assert (answer["claimed"], answer["tail_call"]) == (0, False)

    def test_not_for_tasks_that_a_successor_could_not_claim_either(self, application: Application) -> None:
        application.configure(groups=GroupRules(of={"g": GroupRule(max_running=1)}))
        application.queue.put_many([{"payload": number, "group": "g"} for number in range(2)])
        assert len(application.queue.claim()) == 1
        answer = application.invoke("process_tasks", ring_event({}))
        assert (answer["claimed"], answer["tail_call"]) == (0, False)
        assert application.queue.stats().pending == 1

    @nothing_to_measure
    def test_a_pass_that_fails_frees_its_slot(self, application: Application) -> None:
        application.queue.put("work")
        application.set("FRESHQ_RUNNER", "tests.unit.aws.test_functions:never_awaited")
        with refused("runner"):
            application.invoke("process_tasks", ring_event({}))
        assert not pass_slots(application).all_taken()


class TestSweep:
    def test_it_recovers_orphans_and_due_tasks_and_rings(self, application: Application) -> None:
        past = Queue(core_of(application.queue).store, clock=Clock(application.queue.admin.now() - 60))
        past.put("orphan")
        past.claim(lease_seconds=1)
        past.put("due", delay_seconds=1)
        answer = application.invoke("sweep", load_event("sweep-schedule"))
        assert (answer["recovered"], answer["rang"]) == (2, True)
        assert hops(application, application.process_tasks_topic_arn) == [(0, "sweep")]

    def test_it_does_not_ring_for_an_empty_queue(self, application: Application) -> None:
        assert application.invoke("sweep", {})["skipped"] == "no claimable tasks"

    @pytest.mark.usefixtures("occupied")
    def test_nor_while_a_pass_is_under_way(self, application: Application) -> None:
        application.queue.put("work")
        assert "under way" in application.invoke("sweep", {})["skipped"]

    def test_nor_while_the_queue_is_paused_or_stopped(self, application: Application) -> None:
        application.queue.put("work")
        application.set_switch("stop")
        assert "kill switch" in application.invoke("sweep", {})["skipped"]
        application.queue.pause()
        assert "paused" in application.invoke("sweep", {})["skipped"]

    def test_it_emits_the_state_of_the_queue(
        self, application: Application, capsys: pytest.CaptureFixture[str]
    ) -> None:
        application.queue.put_many([{"payload": number} for number in range(3)])
        application.queue.claim()
        application.invoke("sweep", {})
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
        assert len(lines) == 1
        emitted = {name: lines[0][name] for name in ("TasksPending", "TasksTaken", "TasksDelayed")}
        assert emitted == {"TasksPending": [2.0], "TasksTaken": [1.0], "TasksDelayed": [0.0]}
        assert lines[0]["OldestPendingSeconds"][0] >= lines[0]["NewestPendingSeconds"][0] >= 0


class Deliveries:
    """A Firehose that keeps the records it accepts, and rejects some calls."""

    def __init__(self, refuse: Callable[[int], bool] = lambda _call: False) -> None:
        self.calls = 0
        self.events: list[dict[str, Any]] = []
        self._refuse = refuse

    def put_record_batch(self, *, DeliveryStreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        assert DeliveryStreamName == "Archive"
        assert 1 <= len(Records) <= 500
        assert sum(len(record["Data"]) for record in Records) <= 4 << 20, "refused as a whole"
        answers: list[dict[str, str]] = []
        for record in Records:
            assert len(record["Data"]) <= 5 * 1024 or record["Data"].count(b"\n") == 1
            self.calls += 1
            if self._refuse(self.calls):
                answers.append({"ErrorCode": "ServiceUnavailableException"})
                continue
            answers.append({"RecordId": "1"})
            self.events += [json.loads(line) for line in record["Data"].splitlines()]
        return {"FailedPutCount": 0, "RequestResponses": answers}


def stream_records(count: int) -> list[dict[str, Any]]:
    """Return the stream records of `count` inserts."""
    (record, *_rest) = load_event("archive-life")["Records"]
    records = []
    for number in range(count):
        one = copy.deepcopy(record)
        one["eventID"] = str(number)
        one["dynamodb"]["SequenceNumber"] = f"{number:021d}"
        records.append(one)
    return records


class TestArchive:
    @pytest.mark.usefixtures("delivery_stream")
    def test_changes_are_delivered_without_payloads_and_results(self, application: Application) -> None:
        answer = application.invoke("archive", load_event("archive-life"))
        assert answer == {"batchItemFailures": []}
        stored = b"".join(read_objects("archive"))
        events = [json.loads(line) for line in stored.splitlines()]
        assert [event["change"] for event in events] == ["INSERT", "MODIFY", "MODIFY", "REMOVE"]
        assert [event.get("status") for event in events] == ["PENDING", "TAKEN", "SUCCESS", "SUCCESS"]
        assert events[-1]["ttl_removal"] is True
        assert b"4111" not in stored
        assert b"7f3a" not in stored

    def test_every_event_is_delivered_once_in_packs(self) -> None:
        deliveries = Deliveries()
        delivery = archive_to(deliveries).deliver(stream_records(1000), ample_time)
        assert (delivery.delivered, delivery.failed_from) == (1000, None)
        assert [event["event_id"] for event in deliveries.events] == [str(number) for number in range(1000)]
        assert deliveries.calls < 200

    def test_a_batch_fits_into_a_call_whatever_the_ids_of_its_tasks(self) -> None:
        """A letter of two bytes has six in JSON, and a shard whose batch no call takes would stand still."""
        records = stream_records(700)
        for record in records:
            for name in ("taskId", "parentId", "rootId"):
                record["dynamodb"]["NewImage"][name] = {"S": "ä" * 512}
            record["dynamodb"]["Keys"] = {"taskId": {"S": "ä" * 512}}
        deliveries = Deliveries()
        assert archive_to(deliveries).deliver(records, ample_time).delivered == len(deliveries.events) == 700

    def test_rejected_records_are_sent_again(self) -> None:
        deliveries = Deliveries(refuse=lambda call: call in (1, 3))
        delivery = archive_to(deliveries).deliver(stream_records(100), ample_time)
        assert (delivery.delivered, delivery.failed_from) == (100, None)
        assert {event["event_id"] for event in deliveries.events} == {str(number) for number in range(100)}

    def test_the_batch_is_retried_from_the_first_record_that_stays_rejected(self) -> None:
        deliveries = Deliveries(refuse=lambda call: call > 4)
        records = stream_records(100)
        delivery = archive_to(deliveries).deliver(records, ample_time)
        assert delivery.failed_from == records[delivery.delivered]["dynamodb"]["SequenceNumber"]
        assert delivery.delivered == len(deliveries.events) > 0

    def test_a_record_that_cannot_be_read_does_not_keep_the_others(self) -> None:
        deliveries = Deliveries()
        records = stream_records(10)
        records[4]["dynamodb"]["Keys"] = {}
        delivery = archive_to(deliveries).deliver(records, ample_time)
        assert (delivery.delivered, delivery.failed_from) == (10, None)
        sequence = records[4]["dynamodb"]["SequenceNumber"]
        (reason,) = delivery.unreadable
        assert reason.startswith(f"{sequence}: ")
        assert deliveries.events[4] == {"sequence": sequence, "unreadable": reason.partition(": ")[2]}
        assert [event.get("event_id") for event in deliveries.events].count(None) == 1


def ample_time() -> float:
    """Return the remaining time of an invocation with enough of it."""
    return 60.0


def archive_to(deliveries: Deliveries) -> Archive:
    return Archive(cast("Any", deliveries), "Archive", sleep=lambda _seconds: None)


def read_objects(bucket: str) -> list[bytes]:
    client = boto3.client("s3")
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", [])]
    return [client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys]


ACCEPTED: dict[str, dict[str, Any]] = {
    "archive-life": {"batchItemFailures": []},
    "archive-unreadable": {"batchItemFailures": []},
    "create_tasks-demo": {"created": 20},
    "create_tasks-load": {"created": 30},
    "create_tasks-refused": {"created": 1, "refused": 2},
    "create_tasks-schedule": {"created": 20},
    "create_tasks-tasks": {"created": 2},
    "http_api-base64": {"statusCode": 201},
    "http_api-batch": {"statusCode": 200},
    "http_api-cancel": {"statusCode": 404},
    "http_api-get": {"statusCode": 404},
    "http_api-openapi": {"statusCode": 200},
    "http_api-put": {"statusCode": 201},
    "http_api-refused": {"statusCode": 422},
    "http_api-stage": {"statusCode": 200},
    "http_api-stats": {"statusCode": 200},
    "process_tasks-doorbell": {"claimed": 0},
    "sweep-schedule": {"rang": False},
    "trigger-insert": {"rang": True},
    "trigger-put_over": {"rang": True},
    "trigger-no-insert": {"rang": False},
    "trigger-tail_call": {"rang": True},
}
REFUSED = {
    "create_tasks-malformed": "count: ",
    "http_api-malformed": "version: ",
    "process_tasks-malformed_ring": "hop: ",
    "trigger-malformed_ring": "a ring is JSON",
    "trigger-unknown": "neither",
}


@nothing_to_measure
@pytest.mark.parametrize("name", sorted(file.stem for file in EVENTS.glob("*.json")))
def test_every_event_file_has_the_expected_result(
    application: Application, name: str, request: pytest.FixtureRequest
) -> None:
    function = name.split("-", maxsplit=1)[0]
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            application.invoke(function, load_event(name))
    else:
        if function == "archive":
            request.getfixturevalue("delivery_stream")
        answer = application.invoke(function, load_event(name))
        assert ACCEPTED[name].items() <= answer.items()


def busy(task: Any) -> None:
    """Raise `Busy`, as if there were no capacity."""
    raise Busy(task.task_id)


def busy_to_the_end(task: Any) -> None:
    """Raise `Busy` until the pass ends."""
    outlast_the_pass(task)
    busy(task)


HANGING: Final = threading.Event()
# The default length of a pass.
PASS_SECONDS: Final = 60.0
CLOCKS: Final[list[Ahead]] = []


def outlast_the_pass(_task: Any) -> None:
    """Run until the pass ends, by the clock of the test."""
    (ahead,) = CLOCKS
    ahead.seconds = PASS_SECONDS


def hang(task: Any) -> None:
    """Run until the test ends."""
    outlast_the_pass(task)
    assert HANGING.wait(PATIENCE_SECONDS), task


def pull_the_switch(task: Any) -> str:
    """Set the kill switch during the run, and leave older tasks."""
    boto3.client("ssm").put_parameter(Name="/freshq/switch", Value="stop", Type="String", Overwrite=True)
    outlast_the_pass(task)
    if task.payload < 30:
        busy(task)
    return str(task.task_id)


async def never_awaited(task: Any) -> None:
    """Take arguments that a worker refuses."""
    del task
