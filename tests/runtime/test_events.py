"""Each file of events/ in the built functions and Lambda's own runtime, at every log level."""

import base64
import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from local.emulator import PROJECT, build, runtime_folder
from local.servers import REGION
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.aws.pass_options import configure_stack
from tests.runtime.lambda_runtime import (
    Invocation,
    LambdaRuntime,
    declared_variables,
    emulator,
)
from tests.support.aws_stub import AwsStub
from tests.support.functions import EVENTS, load_event
from tests.support.http_events import difference, event_of_vector
from tests.template.test_template import source
from tests.unit.aws.test_functions import ACCEPTED, REFUSED

pytestmark = [
    pytest.mark.skipif(emulator() is None, reason="the runtime interface emulator is a program for Linux"),
    pytest.mark.timeout(600),
]

LEVELS: Final = {"DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40}
LEVEL_OF_LINE: Final = LEVELS | {"WARNING": 30, "CRITICAL": 50}
# In the order in which they are started: CreateTasks paces its load, which takes seconds.
FUNCTIONS: Final = ("create_tasks", "process_tasks", "sweep", "trigger", "archive", "http_api")
EVENT_NAMES: Final = sorted(file.stem for file in EVENTS.glob("*.json"))
# None of these may be in a log line or in a message to another function.
PAYLOAD: Final = "secret-of-a-payload"
SECRETS: Final = {
    "AWS_SECRET_ACCESS_KEY": "key-that-signs-requests",
    "AWS_SESSION_TOKEN": "token-of-a-role",
}
ACCESS_KEY: Final = "AKIARUNTIMETESTS"
# A counter that each event must have increased.
METRICS: Final = {
    "archive-life": "EventsArchived",
    "archive-unreadable": "ArchiveFailures",
    "create_tasks-demo": "TasksCreated",
    "create_tasks-load": "TasksCreated",
    "create_tasks-refused": "TasksRefused",
    "create_tasks-schedule": "TasksCreated",
    "create_tasks-tasks": "TasksCreated",
    "http_api-base64": "TasksCreated",
    "http_api-batch": "TasksCreated",
    "http_api-put": "TasksCreated",
    "http_api-refused": "TasksRefused",
    "process_tasks-doorbell": "TasksSucceeded",
    "sweep-schedule": "TasksPending",
    "trigger-insert": "Rings",
    "trigger-no-insert": "RingsSkipped",
    "trigger-put_over": "Rings",
    "trigger-tail_call": "Rings",
}
# Reads, which change nothing, and so count nothing.
UNCOUNTED: Final = {f"http_api-{name}" for name in ("cancel", "get", "openapi", "stage", "stats")}
WORK_DONE: Final = {"claimed": 3, "succeeded": 2, "failed": 1}


@dataclass(frozen=True)
class Session:
    """The work of one process of a function: the result of each event, and its whole output."""

    results: dict[str, Invocation]
    output: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines()]

    def delivered(self, level: str) -> list[dict[str, Any]]:
        """Return the lines that Lambda passes on to CloudWatch Logs at the template's levels."""
        threshold = LEVELS[application_level(level)]
        return [line for line in self.lines if level_of(line) >= threshold]


def application_level(level: str) -> str:
    """Return ApplicationLogLevel for a LogLevel, as the template has it."""
    condition, if_debug, otherwise = source()["Globals"]["Function"]["LoggingConfig"]["ApplicationLogLevel"][
        "Fn::If"
    ]
    assert source()["Conditions"][condition] == {"Fn::Equals": [{"Ref": "LogLevel"}, "DEBUG"]}
    return str(if_debug if level == "DEBUG" else otherwise)


def level_of(line: dict[str, Any]) -> int:
    """Return the level that Lambda reads from a line: it takes one without a level or a time for INFO."""
    stamp = line.get("timestamp")
    known = isinstance(stamp, str) and datetime.fromisoformat(stamp).tzinfo is not None
    return LEVEL_OF_LINE[line["level"]] if known and "level" in line else LEVELS["INFO"]


@pytest.fixture(scope="session")
def template() -> Path:
    """Return the application as `sam build` builds it for this interpreter."""
    return build(PROJECT / "build" / "local")


@dataclass(frozen=True)
class Cloud:
    """The services that the functions call."""

    template: Path
    packages: Path
    dynamodb: DynamoDBClient
    stub: AwsStub

    def environment(self, function: str, level: str, table: str) -> dict[str, str]:
        """Return the variables that the template declares, with the values of events/environment/dev.json."""
        given = json.loads((EVENTS / "environment" / "dev.json").read_text("utf-8"))["Parameters"]
        # Like `sam local invoke`, ignore values of variables that the template does not declare.
        declared = declared_variables(self.template, function)
        variables = {name: given.get(name, value) for name, value in declared.items()}
        assert all(isinstance(value, str) for value in variables.values()), variables
        return variables | {
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            **SECRETS,
            "AWS_ENDPOINT_URL": self.stub.endpoint_url,
            "AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb.meta.endpoint_url,
            "AWS_LAMBDA_LOG_LEVEL": application_level(level),
            "POWERTOOLS_LOG_LEVEL": level,
            "FRESHQ_TABLE": table,
            "FRESHQ_DEMO_TASK_SECONDS": "0.01",
        }

    def run(self, function: str, level: str) -> Session:
        """Start a function, and invoke it with each of its events."""
        table = f"{function}-{level}-{uuid.uuid4().hex[:8]}"
        queue = Queue.dynamodb(table, self.dynamodb, max_age_seconds=3600)
        queue.create_table()
        configure_stack(queue, idle_exit_seconds=0.1, log_sample_ratio=1)
        if function == "process_tasks":
            work: list[dict[str, Any]] = [{"payload": {"secret": PAYLOAD}}, {"payload": PAYLOAD}]
            queue.put_many([*work, {"payload": {"reject": True, "secret": PAYLOAD}}])
        logical_id = "".join(part.title() for part in function.split("_")) + "Function"
        environment = self.environment(logical_id, level, table)
        with LambdaRuntime(self.template.parent, logical_id, self.packages, environment) as runtime:
            results = {
                name: runtime.invoke(with_secret(load_event(name)))
                for name in EVENT_NAMES
                if name.partition("-")[0] == function
            }
            output = runtime.output()
        queue.close()
        return Session(results, output)


def with_secret(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with a payload that must not be logged, if it has payloads."""
    tasks = [task | {"payload": {"secret": PAYLOAD}} for task in event.get("tasks", [])]
    text = json.dumps(event | ({"tasks": tasks} if tasks else {}))
    if isinstance(body := event.get("body"), str):  # of a request, as text or in Base64
        if is_encoded := event["isBase64Encoded"]:
            body = base64.b64decode(body).decode()
        body = body.replace("4111", PAYLOAD)
        text = json.dumps(event | {"body": base64.b64encode(body.encode()).decode() if is_encoded else body})
    # Images of stream records have the payload as text.
    return dict(json.loads(re.sub(r'("payload": \{"S": )"(?:[^"\\]|\\.)*"', rf'\1"\\"{PAYLOAD}\\""', text)))


@pytest.fixture(scope="module")
def cloud(
    template: Path, dynamodb_local: DynamoDBClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    # The same tables as the functions': DynamoDB Local keeps them by access key and region.
    client: DynamoDBClient = boto3.client(
        "dynamodb",
        endpoint_url=dynamodb_local.meta.endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key="none",
    )
    with AwsStub() as stub:
        yield Cloud(template, runtime_folder(tmp_path_factory.mktemp("runtime")), client, stub)
    client.close()


@pytest.fixture(scope="module")
def sessions(cloud: Cloud) -> dict[tuple[str, str], Session]:
    """Return each function's session at each log level, four at a time."""
    with ThreadPoolExecutor(4) as pool:
        jobs = {job: pool.submit(cloud.run, *job) for job in product(FUNCTIONS, LEVELS)}
        done = {job: session.result() for job, session in jobs.items()}
    assert PAYLOAD not in json.dumps(cloud.stub.published) + str(cloud.stub.delivered)
    return done


def test_the_http_interface_answers_the_vectors(cloud: Cloud) -> None:
    table = f"vectors-{uuid.uuid4().hex[:8]}"
    with closing(Queue.dynamodb(table, cloud.dynamodb, max_age_seconds=3600)) as queue:
        queue.create_table()
    environment = cloud.environment("HttpApiFunction", "INFO", table)
    with LambdaRuntime(cloud.template.parent, "HttpApiFunction", cloud.packages, environment) as runtime:
        for vector in json.loads((PROJECT / "examples/http/vectors.json").read_text("utf-8")):
            result = runtime.invoke(event_of_vector(vector))
            assert result.error is None, result
            assert difference(vector, result.answer) == ""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", EVENT_NAMES)
def test_an_event_is_answered_as_documented(
    sessions: dict[tuple[str, str], Session], name: str, level: str
) -> None:
    result = sessions[name.partition("-")[0], level].results[name]
    if name in REFUSED:
        assert result.error is not None
        assert REFUSED[name] in result.error
        return
    assert result.error is None, result
    expected = WORK_DONE if name == "process_tasks-doorbell" else ACCEPTED[name]
    assert expected.items() <= result.answer.items()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("function", FUNCTIONS)
class TestLog:
    def test_every_line_is_json_of_its_level_and_names_its_invocation(
        self, sessions: dict[tuple[str, str], Session], function: str, level: str
    ) -> None:
        lines = [line for line in sessions[function, level].lines if "message" in line]
        assert all(level_of(line) >= LEVELS[level] for line in lines), lines
        if level in ("DEBUG", "INFO"):
            assert any(line.get("function_request_id") and line["level"] == "INFO" for line in lines)
        ours = [line for line in lines if line.get("service") == "freshq"]
        assert all({"function_request_id", "function_name", "timestamp"} <= line.keys() for line in ours)

    def test_no_level_loses_a_metric(
        self, sessions: dict[tuple[str, str], Session], function: str, level: str
    ) -> None:
        session = sessions[function, level]
        metrics = [line for line in session.delivered(level) if "_aws" in line]
        emitted = {name for line in metrics for name in line}
        wanted = {METRICS[name] for name in session.results if name not in REFUSED.keys() | UNCOUNTED}
        assert wanted <= emitted
        for line in metrics:
            (directive,) = line["_aws"]["CloudWatchMetrics"]
            assert directive["Namespace"] == "freshq"
            assert {*directive["Dimensions"][0]} == {"service", "stack", "queue"}
            assert line["stack"] == "freshq-dev"
            assert all(metric["Name"] in line for metric in directive["Metrics"])

    def test_no_line_has_a_payload_or_a_credential(
        self, sessions: dict[tuple[str, str], Session], function: str, level: str
    ) -> None:
        session = sessions[function, level]
        assert session.lines
        for secret in (PAYLOAD, ACCESS_KEY, *SECRETS.values()):
            assert secret not in session.output


def test_all_that_the_functions_load_is_in_the_artefact_or_in_lambda(
    sessions: dict[tuple[str, str], Session],
) -> None:
    """Their processes see no other packages; an import that fails is an error of each invocation."""
    errors = [each.error or "" for session in sessions.values() for each in session.results.values()]
    assert not [error for error in errors if "import" in error.lower()]
