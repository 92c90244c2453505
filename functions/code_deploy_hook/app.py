"""Before a new version gets traffic: invokes every function's new version, and tells CodeDeploy the result.

The versions get the events of events/ on a queue of their own, and the runner a task of the kind `canary`.
"""

from __future__ import annotations

import json
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config

from freshq.aws.environment import Arn, EnvironmentSettings
from freshq.aws.observability import CANARY, CANARY_QUEUE, fields, logger, observed
from freshq.aws.wakeup import SWITCHED_OFF

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext

EVENTS: Final = Path(__file__).parent / "events"
# An event, and a part of its answer. Events that must fail are left out: their errors would set off alarms.
CHECKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "trigger-insert": {},  # the kill switch may forbid the ring
    "trigger-no-insert": {"rang": False},
    "sweep-schedule": {},
}
# A worker pass by its timeout is the longest of the answers.
PATIENT: Final = Config(read_timeout=910, retries={"total_max_attempts": 1})


class HookSettings(EnvironmentSettings):
    """The new versions, by their ARNs.

    Attributes:
        attach_key: Set if the tasks are records of an application, to which a canary must not be added.
        create_tasks_version: Version of CreateTasks.
        trigger_version: Version of Trigger.
        process_tasks_version: Version of ProcessTasks.
        sweep_version: Version of Sweep.
        archive_version: Version of Archive; empty without one.
        http_api_version: Version of HttpApi; empty without one.
    """

    attach_key: str = ""
    create_tasks_version: Arn
    trigger_version: Arn
    process_tasks_version: Arn
    sweep_version: Arn
    archive_version: str = ""
    http_api_version: str = ""


@cache
def _lambda() -> Any:
    return boto3.client("lambda", config=PATIENT)


@cache
def _codedeploy() -> Any:
    return boto3.client("codedeploy")


@observed
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Check the versions, and report to CodeDeploy, which stops the deployment if one fails."""
    deployment = event["DeploymentId"]
    try:
        problems = list(_problems(CANARY_QUEUE + uuid.uuid4().hex))
    except Exception as error:  # noqa: BLE001 - without a report, CodeDeploy would wait for an hour
        logger.exception("the new versions could not be checked")
        problems = [f"{type(error).__name__}: {error}"]
    status = "Failed" if problems else "Succeeded"
    log = logger.error if problems else logger.info
    log("new versions checked", **fields(status=status, problems=problems))
    _codedeploy().put_lifecycle_event_hook_execution_status(
        deploymentId=deployment,
        lifecycleEventHookExecutionId=event["LifecycleEventHookExecutionId"],
        status=status,
    )
    return {"status": status, "problems": problems}


def _problems(queue: str) -> Iterator[str]:
    """Yield the problems of the new versions."""
    settings = HookSettings.load()
    tasks = [] if settings.attach_key else [{"task_id": queue, "kind": CANARY, "payload": None}]
    made = {"created": len(tasks), "not_written": []}
    yield from _problem(settings.create_tasks_version, queue, {"tasks": tasks}, made)
    for name, expected in CHECKS.items():
        version = getattr(settings, f"{name.partition('-')[0]}_version")
        yield from _problem(version, queue, _event(name), expected)
    done = {"succeeded": len(tasks), "unfinished": []}
    yield from _problem(settings.process_tasks_version, queue, _event("process_tasks-doorbell"), done)
    if settings.archive_version:
        yield from _problem(settings.archive_version, queue, {"Records": []}, {"batchItemFailures": []})
    if settings.http_api_version:
        yield from _problem(settings.http_api_version, queue, _event("http_api-stats"), {"statusCode": 200})


def _event(name: str) -> Any:
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


def _problem(version: str, queue: str, event: Any, expected: Mapping[str, Any]) -> Iterator[str]:
    """Invoke a version; yield the difference between its answer and the expected one, if any."""
    response = _lambda().invoke(
        FunctionName=version, Payload=json.dumps({"canary": queue, "event": event}).encode()
    )
    answer = json.loads(response["Payload"].read())
    name = ":".join(version.split(":")[-2:])
    if response.get("FunctionError"):
        yield f"{name}: {answer.get('errorMessage', response['FunctionError'])}"
        return
    found = {key: answer.get(key) for key in expected}
    if found != expected and answer.get("skipped") != SWITCHED_OFF:
        yield f"{name}: answered {found}, expected {dict(expected)}"
