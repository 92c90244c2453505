"""The hook of a deployment: it invokes each new version, and stops the deployment if one fails."""

import io
import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from freshq import Handlers, Task
from freshq.aws import traces
from freshq.aws.environment import dynamodb_client
from tests.support.functions import Context, load_function
from tests.support.refusals import refused
from tests.unit.aws.test_function_metrics import emitted
from tests.unit.conftest import Application

# Powertools warns if a handler raises before its first metric.
pytestmark = [
    pytest.mark.filterwarnings("ignore:No application metrics to publish"),
    pytest.mark.usefixtures("delivery_stream"),
]
FUNCTIONS: Final = ("create_tasks", "trigger", "process_tasks", "sweep", "archive", "http_api")
EVENT: Final = {"DeploymentId": "d-ABCDEF123", "LifecycleEventHookExecutionId": "execution-1"}
RUNS: Final[list[Task]] = []
knows = Handlers()


@knows.on("canary")
def runs_canaries(task: Task) -> None:
    RUNS.append(task)


def run(task: Task) -> None:
    """Run tasks, in a module whose canary fails."""
    RUNS.append(task)


def canary(_task: Task) -> None:
    raise RuntimeError("no connection to the downstream")


@dataclass
class Cloud:
    """A stub of Lambda and CodeDeploy, with the calls of the hook.

    Attributes:
        application: Its functions answer.
        broken: Functions that fail every call, and how.
        reports: The results reported to CodeDeploy.
        events: The events sent to the functions.
    """

    application: Application
    broken: dict[str, str] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    def invoke(self, **call: Any) -> dict[str, Any]:
        """Answer as Lambda does."""
        function, _, number = call["FunctionName"].removeprefix("arn:").partition(":")
        assert number == "7", "not the new version"
        self.events.append(json.loads(call["Payload"])["event"])
        error = self.broken.get(function)
        answer: Any = None
        if error is None:
            try:
                answer = self.application.invoke(function, json.loads(call["Payload"]))
            except ValueError as raised:
                error = str(raised)
        if error is None:
            return {"Payload": io.BytesIO(json.dumps(answer).encode())}
        failure = {"errorMessage": error}
        return {"Payload": io.BytesIO(json.dumps(failure).encode()), "FunctionError": "Unhandled"}

    def put_lifecycle_event_hook_execution_status(self, **report: Any) -> None:
        self.reports.append(report)

    def deploy(self) -> dict[str, Any]:
        """Invoke the hook of a deployment; return its answer."""
        hook: ModuleType = load_function("code_deploy_hook")
        patch = self.application.patch
        for name in FUNCTIONS:
            self.application.set(f"FRESHQ_{name.upper()}_VERSION", f"arn:{name}:7")
        patch.setattr(hook, "_lambda", lambda: self)
        patch.setattr(hook, "_codedeploy", lambda: self)
        answer: dict[str, Any] = hook.handler(EVENT, Context())
        (report,) = self.reports
        assert report == {
            "deploymentId": "d-ABCDEF123",
            "lifecycleEventHookExecutionId": "execution-1",
            "status": answer["status"],
        }
        return answer


@pytest.fixture
def cloud(application: Application) -> Cloud:
    RUNS.clear()
    return Cloud(application)


def test_versions_that_work_are_let_through(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.application.queue.put("of the application")
    assert cloud.deploy() == {"status": "Succeeded", "problems": []}
    # Nothing of it is in the queue's own metrics, and the queue was not worked.
    lines = emitted(capsys.readouterr().out)
    assert {line["queue"] for line in lines} == {"canary"}
    assert sum(sum(line.get("TasksSucceeded", [])) for line in lines) == 1
    stats = cloud.application.queue.stats()
    assert (stats.pending, stats.success) == (1, 0)
    # What it wrote expires: a rolling deployment every day must not fill the table.
    found = dynamodb_client().scan(TableName="QueueTable")["Items"]
    left = [item for item in found if "canary-" in item["taskId"]["S"]]
    assert left
    assert [item for item in left if "ttl" not in item] == []


@pytest.mark.matrix("function")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_version_that_fails_every_call_is_stopped(cloud: Cloud, function: str) -> None:
    cloud.broken[function] = "FRESHQ_TABLE: is missing"
    answer = cloud.deploy()
    assert answer["status"] == "Failed"
    assert f"{function}:7: FRESHQ_TABLE: is missing" in answer["problems"]


def test_a_runner_that_fails_its_canary_is_stopped(cloud: Cloud) -> None:
    cloud.application.set("FRESHQ_RUNNER", f"{__name__}:run")
    answer = cloud.deploy()
    assert answer["status"] == "Failed"
    (problem,) = answer["problems"]
    assert problem.startswith("process_tasks:7: answered {'succeeded': 0")
    assert RUNS == [], "the runner itself did the canary's task"


def test_a_runner_that_cannot_be_imported_is_stopped(cloud: Cloud) -> None:
    cloud.application.set("FRESHQ_RUNNER", "no_such_module:run")
    (problem,) = cloud.deploy()["problems"]
    assert "no_such_module" in problem


@pytest.mark.parametrize("traced", [False, True])
def test_handlers_run_the_kind_canary_if_they_have_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, *, traced: bool
) -> None:
    if traced:  # as functions are by default; the provider has no subsegment here
        provider = SimpleNamespace(in_subsegment=lambda **_: nullcontext())
        monkeypatch.setattr(
            traces,
            "_TRACER",
            SimpleNamespace(provider=provider, capture_lambda_handler=lambda handler, **_: handler),
        )
    cloud.application.set("FRESHQ_RUNNER", f"{__name__}:knows")
    assert cloud.deploy()["status"] == "Succeeded"
    assert [task.kind for task in RUNS] == ["canary"]
    cloud.reports.clear()
    monkeypatch.setitem(globals(), "knows", Handlers())
    assert cloud.deploy()["status"] == "Succeeded"
    assert len(RUNS) == 1


def test_a_kill_switch_at_stop_lets_a_hotfix_through(cloud: Cloud) -> None:
    cloud.application.set_switch("stop")
    assert cloud.deploy() == {"status": "Succeeded", "problems": []}


def test_records_of_an_application_get_no_canary(cloud: Cloud) -> None:
    cloud.application.set("FRESHQ_ATTACH_KEY", "id")
    cloud.broken = dict.fromkeys(FUNCTIONS, "not asked")
    cloud.deploy()
    assert cloud.events[0] == {"tasks": []}


def test_the_hook_reports_also_what_it_does_not_expect(cloud: Cloud) -> None:
    cloud.application.patch.setattr(cloud, "invoke", None)
    answer = cloud.deploy()
    assert answer["status"] == "Failed"
    assert answer["problems"][0].startswith("TypeError")


def test_only_a_queue_of_canaries_can_be_named(application: Application) -> None:
    with refused("canary"):
        application.invoke("sweep", {"canary": "other", "event": {}})
