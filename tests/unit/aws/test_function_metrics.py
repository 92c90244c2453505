"""Metrics: their dimensions, and that the alarms and the dashboard ask for those that exist."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq.aws.worker_pass import SYNTHETIC
from tests.support.function_chain import LEASE_SECONDS, chain_on
from tests.support.functions import PROJECT, load_event
from tests.support.refusals import refused
from tests.support.table_clock import Ahead
from tests.template.test_alarms import state
from tests.template.test_template import source
from tests.unit.conftest import Application


def emitted(output: str) -> list[dict[str, Any]]:
    """Return the metrics lines of a function's output."""
    return [json.loads(line) for line in output.splitlines() if '"_aws"' in line]


def metrics_of_alarms() -> Iterator[dict[str, Any]]:
    """Yield the metrics of freshq that the alarms ask for."""
    for resource in source()["Resources"].values():
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            properties = resource["Properties"]
            parts = [part.get("MetricStat", {}).get("Metric", {}) for part in properties.get("Metrics", [])]
            yield from (part for part in (properties, *parts) if part.get("Namespace") == "freshq")


def metrics_of_the_dashboard() -> list[list[Any]]:
    """Return the metrics of freshq on the dashboard, as CloudWatch reads them."""
    body = json.loads(source()["Resources"]["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"][0])
    metrics = [entry for widget in body["widgets"] for entry in widget["properties"]["metrics"]]
    return [entry for entry in metrics if entry[0] == "freshq"]


@pytest.mark.usefixtures("delivery_stream")
def test_alarms_and_dashboard_ask_for_metrics_that_are_emitted_under_their_dimensions(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    application.set("FRESHQ_SYNTHETIC_TASK", "on")
    application.queue.put_many(
        [{"payload": 1, "value": 2}, {"payload": {"reject": True}}, {"payload": 1, "kind": SYNTHETIC}]
    )
    for function, event in (
        ("create_tasks", {"tasks": [{"payload": 1}]}),
        ("trigger", load_event("trigger-insert")),
        ("process_tasks", load_event("process_tasks-doorbell")),
        ("sweep", {}),
        ("archive", load_event("archive-unreadable")),
    ):
        application.invoke(function, event)
    application.queue.put("waits")
    application.invoke("sweep", {})
    lines = emitted(capsys.readouterr().out)
    directives = [line["_aws"]["CloudWatchMetrics"][0] for line in lines]
    assert {directive["Namespace"] for directive in directives} == {"freshq"}
    assert {tuple(sorted(directive["Dimensions"][0])) for directive in directives} == {
        ("queue", "service", "stack")
    }
    assert all(len(directive["Dimensions"]) == 1 for directive in directives)
    names = {metric["Name"] for directive in directives for metric in directive["Metrics"]}
    asked = list(metrics_of_alarms())
    assert len(asked) >= 9
    for metric in asked:
        assert metric["MetricName"] in names
        assert metric["Dimensions"] == [
            {"Name": "service", "Value": "freshq"},
            {"Name": "stack", "Value": {"Ref": "AWS::StackName"}},
            {"Name": "queue", "Value": {"Ref": "QueueName"}},
        ]
    shown = metrics_of_the_dashboard()
    assert len(shown) >= 20
    # From outcomes that this load does not have.
    rare = {
        "TailCalls",
        "TailCallsCapped",
        "TailCallsFailed",
        "PassesSkipped",
        "RingsSkipped",
        "TasksOverran",
    }
    modules = [*(PROJECT / "functions").rglob("app.py"), *(PROJECT / "layers/freshq/freshq/aws").glob("*.py")]
    sources = "".join(module.read_text("utf-8") for module in modules)
    assert {name for name in rare if f'"{name}"' not in sources} == set()
    for entry in shown:
        assert entry[1] in names | rare
        assert entry[2:8] == ["service", "freshq", "stack", "${AWS::StackName}", "queue", "${QueueName}"]
    variables = source()["Globals"]["Function"]["Environment"]["Variables"]
    assert variables["POWERTOOLS_SERVICE_NAME"] == "freshq"
    assert variables["FRESHQ_STACK"] == {"Ref": "AWS::StackName"}
    assert variables["FRESHQ_QUEUE_NAME"] == {"Ref": "QueueName"}


def test_the_sweep_says_what_stops_the_work(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    """The metric exists even while nothing waits, so that the alarm does not depend on the load."""
    application.set_switch("stop")
    application.queue.pause()
    application.invoke("sweep", {})
    (line,) = emitted(capsys.readouterr().out)
    assert (line["KillSwitchStops"], line["QueuePaused"], line["TasksClaimed"]) == ([1.0], [1.0], [0.0])
    assert line["ShedRatio"] == [0.0]
    application.set_switch("run")
    application.queue.resume()
    application.queue.put_many([{"payload": number} for number in range(3)])
    application.invoke("sweep", {})
    (line,) = emitted(capsys.readouterr().out)
    assert (line["KillSwitchStops"], line["QueuePaused"]) == ([0.0], [0.0])
    assert line["OfferedPerSecond"][0] >= 0


def test_the_runner_never_sees_a_synthetic_task(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    application.set("FRESHQ_RUNNER", f"{__name__}:remember")
    tasks: list[Any] = [{"payload": None, "kind": kind} for kind in (SYNTHETIC, "mail")]
    for switch, seen in (("on", {"mail"}), ("off", {"mail", SYNTHETIC})):
        SEEN.clear()
        application.set("FRESHQ_SYNTHETIC_TASK", switch)
        application.queue.put_many(tasks)
        application.invoke("process_tasks", load_event("process_tasks-doorbell"))
        assert seen == SEEN
    lines = emitted(capsys.readouterr().out)
    assert sum(sum(line.get("SyntheticTasksDone", [])) for line in lines) == 2


# Kinds of the tasks that the runner ran.
SEEN: Final[set[str | None]] = set()


def remember(task: Any) -> None:
    """Be a runner."""
    SEEN.add(task.kind)


def test_every_task_that_becomes_a_dead_letter_is_counted_once(
    dynamodb_local: DynamoDBClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a run, because its last lease expired, and because it cannot be read."""
    with chain_on(dynamodb_local) as chain:
        chain.configure(max_attempts=1)
        chain.set("FRESHQ_RUNNER", "freshq.aws.demo_runner:run")
        chain.set("FRESHQ_DEMO_TASK_SECONDS", "0.001")
        chain.queue.put("orphan")
        chain.queue.claim()
        chain.ahead.seconds += 2 * LEASE_SECONDS
        chain.queue.put("damaged", task_id="damaged")
        damaged: Any = {"TableName": chain.table, "Key": {"taskId": {"S": "damaged"}}}
        chain.client.update_item(**damaged, UpdateExpression="REMOVE payload")
        chain.queue.put({"reject": True})
        chain.invoke("sweep", {})
        chain.invoke("process_tasks", load_event("process_tasks-doorbell"))
        chain.invoke("sweep", {})
        assert chain.queue.stats().failure == 3
    lines = emitted(capsys.readouterr().out)
    assert sum(sum(line.get("TasksFailed", [])) for line in lines) == 3
    assert sum(sum(line.get("TasksUnreadable", [])) for line in lines) == 1


def minutes(lines: list[dict[str, Any]], minutes: int = 60) -> dict[str, list[float]]:
    """Return the metrics of some lines as if every minute were like them."""
    names = {name for line in lines for name in line if isinstance(line[name], list)}
    values = {name: [value for line in lines for value in line.get(name, [])] for name in names}
    return {
        name: [max(found) if name == "ShedRatio" else sum(found)] * minutes for name, found in values.items()
    }


def test_the_alarms_of_runs_and_of_a_dead_archive_go_off_by_what_is_emitted(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nineteen of twenty runs fail, and nothing archives their changes."""
    application.queue.put_many([{"payload": {"reject": number > 0}} for number in range(20)])
    application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    application.invoke("sweep", {})
    emitted_hour = minutes(emitted(capsys.readouterr().out), 6 * 60)
    for alarm in ("RunnerFailsFastAlarm", "RunnerFailsSlowlyAlarm", "ArchiveSilenceAlarm"):
        assert state(alarm, emitted_hour), alarm
    assert not state("FreshnessBurnsFastAlarm", emitted_hour)


def test_the_alarms_of_freshness_go_off_by_what_the_sweep_emits(
    ahead: Ahead, application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two tasks a second come, and one is served in all."""
    application.configure(max_age_seconds=300)
    application.queue.put_many([{"payload": number} for number in range(60)])
    ahead.seconds += 200
    application.queue.put_many([{"payload": number} for number in range(60)])
    application.queue.admin.flush()
    (claim,) = application.queue.claim()
    application.queue.complete(claim)
    application.invoke("sweep", {})
    overloaded = minutes(emitted(capsys.readouterr().out), 6 * 60)
    assert state("FreshnessBurnsFastAlarm", overloaded)
    assert state("FreshnessBurnsSlowlyAlarm", overloaded)


@pytest.mark.parametrize(
    ("pending", "claimed", "taken", "stuck"),
    [
        (5, 0, 0, True),
        (5, 0, 3, False),  # runs of more than five minutes hold every slot
        (5, 0, 1, False),  # a pass waits for its last run, and claims no more
        (5, 2, 0, False),
        (0, 0, 0, False),
    ],
)
def test_nothing_claimed_is_alarming_only_while_nothing_is_in_work(
    pending: int, claimed: int, taken: int, *, stuck: bool
) -> None:
    found = {"TasksPending": pending, "TasksClaimed": claimed, "TasksTaken": taken}
    assert state("NothingClaimedAlarm", {name: [float(value)] * 5 for name, value in found.items()}) is stuck


@pytest.mark.filterwarnings("ignore:No application metrics to publish")
def test_a_worker_without_time_to_claim_fails(application: Application) -> None:
    application.configure(settle_seconds=120)
    with refused("settle_seconds"):
        application.invoke("process_tasks", load_event("process_tasks-doorbell"))
