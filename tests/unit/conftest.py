"""An application in an account: the table, the topics, the kill switch, and the functions' environment."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, Queue
from freshq.aws import demo_runner
from freshq.aws.pass_options import configure_stack
from tests.conftest import REGION
from tests.support.functions import Context, load_function
from tests.support.table_clock import Ahead


@cache
def client(service: Any) -> Any:
    """Return a client in the account of any test; to make one takes longer than to use it."""
    return boto3.client(service)


@dataclass
class Application:
    """The application's parts, with access to the published messages."""

    queue: Queue | AttachedQueue
    trigger_topic_arn: str
    process_tasks_topic_arn: str
    patch: pytest.MonkeyPatch

    def set(self, name: str, value: str) -> None:
        """Set a variable of the functions' environment, until the test ends."""
        self.patch.setenv(name, value)

    def configure(self, **options: Any) -> None:
        """Store options with the queue, or of its worker passes."""
        configure_stack(self.queue, **options)

    def invoke(self, function: str, event: Any, context: Context | None = None) -> dict[str, Any]:
        """Invoke a function that has just been started."""
        answer: dict[str, Any] = load_function(function).handler(event, context or Context())
        return answer

    def rings(self, topic_arn: str) -> list[dict[str, Any]]:
        """Return the messages published to a topic."""
        topic = sns_backends[DEFAULT_ACCOUNT_ID][REGION].topics[topic_arn]
        return [json.loads(message) for _id, message, *_rest in topic.sent_notifications]

    def set_switch(self, value: str) -> None:
        """Set the kill switch."""
        client("ssm").put_parameter(Name="/freshq/switch", Value=value, Type="String", Overwrite=True)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands print as into a pipe, even if something in the process has set a width.

    A library in C, such as readline, sets it past `os.environ`, but programs that a test starts inherit it.
    """
    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.delenv("COLUMNS")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Take away the handlers that a command of the test added."""
    loggers = [logging.getLogger(), logging.getLogger("freshq")]
    before = [list(logger.handlers) for logger in loggers]
    yield
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """Let a test move the time of the tables; take it before what opens one."""
    ahead = Ahead()
    ahead.lead(monkeypatch)
    return ahead


@pytest.fixture
def application(account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    topics = [client("sns").create_topic(Name=name)["TopicArn"] for name in ("Trigger", "ProcessTasks")]
    environment = {
        "FRESHQ_TABLE": "QueueTable",
        "FRESHQ_TRIGGER_TOPIC_ARN": topics[0],
        "FRESHQ_PROCESS_TASKS_TOPIC_ARN": topics[1],
        "FRESHQ_KILL_SWITCH_PARAMETER": "/freshq/switch",
        "FRESHQ_DELIVERY_STREAM": "Archive",
        "FRESHQ_DEMO_TASK_SECONDS": "0.001",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    demo_runner._downstream.cache_clear()  # a test may set how long its tasks take
    queue = Queue.dynamodb("QueueTable", account_client)
    queue.create_table()
    application = Application(queue, topics[0], topics[1], monkeypatch)
    application.set_switch("run")
    application.configure(idle_exit_seconds=0.1, log_sample_ratio=1)
    yield application
    queue.close()


@pytest.fixture
def delivery_stream(application: Application) -> None:
    """Make a delivery stream into a bucket."""
    del application  # in whose cloud it is
    location: Any = {"LocationConstraint": REGION}
    boto3.client("s3").create_bucket(Bucket="archive", CreateBucketConfiguration=location)
    boto3.client("firehose").create_delivery_stream(
        DeliveryStreamName="Archive",
        ExtendedS3DestinationConfiguration={
            "BucketARN": "arn:aws:s3:::archive",
            "RoleARN": "arn:aws:iam::123456789012:role/archive",
        },
    )
