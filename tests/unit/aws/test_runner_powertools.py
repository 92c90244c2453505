"""A runner that uses Powertools changes neither freshq's metrics nor its log lines, and keeps its own."""

import io
import json
import logging
import threading
from typing import Any, Final

import boto3
import pytest
from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities import parameters
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

from tests.support.functions import Context, load_event
from tests.unit.aws.test_function_logs import log as log  # noqa: PLC0414 - a fixture
from tests.unit.aws.test_function_metrics import emitted
from tests.unit.conftest import Application

TASKS: Final = 12
RAN: Final[list[str]] = []
WRITTEN: Final = io.StringIO()
OWN: Final = {"service": "freshq", "stack": "none", "queue": "default"}


def own_logger(**options: Any) -> Logger:
    """Return a logger as a runner's module makes one."""
    return Logger(stream=WRITTEN, **options)


class Shop:
    """The runner's module: its Powertools, made as the module is imported."""

    def __init__(self, **options: Any) -> None:
        self.metrics = Metrics(namespace="shop", **options)
        self.metrics.set_default_dimensions(environment="test")
        # Metrics that two threads flush at once are written twice: Powertools clears them afterwards.
        self.one_at_a_time = threading.Lock()
        self.logger = own_logger(**options)
        self.tracer = Tracer(**options)
        self.processor = BatchProcessor(event_type=EventType.SQS)
        self.store = DynamoDBPersistenceLayer(table_name="Idempotency")
        self.config = IdempotencyConfig(event_key_jmespath="id")

    def work(self, task_id: str) -> Any:
        """Use everything, as a runner does."""
        self.logger.append_keys(order=task_id)
        self.logger.thread_safe_append_keys(customer=task_id)
        self.tracer.put_annotation("order", task_id)
        self.logger.info("ordered")

        def name_of(order: dict[str, Any]) -> str:
            return str(order["id"])

        once: Any = idempotent_function(
            name_of, data_keyword_argument="order", persistence_store=self.store, config=self.config
        )

        def one(record: SQSRecord) -> str:
            return str(once(order={"id": f"{task_id}-{record.message_id}"}))

        records = {"Records": [{"messageId": number, "body": "{}"} for number in ("1", "2")]}
        answer = process_partial_response(
            event=records, record_handler=one, processor=BatchProcessor(EventType.SQS), context=None
        )
        with self.one_at_a_time:
            self.metrics.add_metric("Orders", MetricUnit.Count, 1)
            self.metrics.flush_metrics()
        return [parameters.get_parameter("/shop/price"), answer["batchItemFailures"]]


SHOPS: Final[dict[str, Shop]] = {}


def run(task: Any) -> Any:
    """Be the runner."""
    (shop,) = SHOPS.values()
    RAN.append(task.task_id)
    return shop.work(task.task_id)


@pytest.fixture
def priced(application: Application) -> Application:
    """Make the runner's loggers and metrics."""
    boto3.client("ssm").put_parameter(Name="/shop/price", Value="3", Type="String")
    boto3.client("dynamodb").create_table(
        TableName="Idempotency",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    application.set("FRESHQ_RUNNER", f"{__name__}:run")
    application.set("POWERTOOLS_SERVICE_NAME", "freshq")  # reset at the end
    application.set("POWERTOOLS_METRICS_NAMESPACE", "freshq")
    application.configure(concurrency=3)
    return application


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"service": "orders"}, {}], ids=["named", "with freshq's service name"])
def test_each_has_its_own(
    priced: Application, log: io.StringIO, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    RAN.clear()
    WRITTEN.seek(0)
    WRITTEN.truncate()
    SHOPS.clear()
    SHOPS["one"] = Shop(**options)
    priced.queue.put_many([{"payload": number, "task_id": f"t{number}"} for number in range(TASKS)])
    try:
        answer = priced.invoke("process_tasks", load_event("process_tasks-doorbell"))
        priced.invoke("sweep", {})
    finally:
        SHOPS["one"].metrics.clear_default_dimensions()
        SHOPS["one"].metrics.clear_metrics()
        remove_handlers_of(SHOPS["one"].logger)
    assert answer["succeeded"] == TASKS, log.getvalue()
    assert sorted(RAN) == sorted(f"t{number}" for number in range(TASKS))

    lines = emitted(capsys.readouterr().out)
    counts: dict[tuple[str, str], float] = {}
    for line in lines:
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        for metric in directive["Metrics"]:
            name = (directive["Namespace"], metric["Name"])
            counts[name] = counts.get(name, 0) + sum(line[metric["Name"]])
        if directive["Namespace"] == "freshq":
            assert {name: line[name] for name in directive["Dimensions"][0]} == OWN
            assert "environment" not in line
        else:
            assert "stack" not in line
    # On a busy machine, a claimed task that waits too long for a thread goes back, and is claimed again.
    claimed = counts["freshq", "TasksClaimed"] - counts.get(("freshq", "TasksGivenBack"), 0)
    assert claimed == counts["freshq", "TasksSucceeded"] == TASKS, counts
    assert counts["freshq", "Passes"] == 1
    assert counts["shop", "Orders"] == TASKS
    assert {name for namespace, name in counts if namespace == "shop"} == {"Orders"}

    own = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {"task claimed", "task settled", "pass ended", "swept"} <= {line["message"] for line in own}
    for line in own:
        assert not {"order", "customer"} & line.keys(), line
        assert line["service"] == "freshq"
    theirs = [json.loads(line) for line in WRITTEN.getvalue().splitlines()]
    ordered = [line for line in theirs if line["message"] == "ordered"]
    assert len(ordered) == TASKS
    assert all(line["order"] and line["customer"] for line in ordered)
    assert not {"chain", "hop"} & {name for line in ordered for name in line}
    assert "task settled" not in WRITTEN.getvalue()


def remove_handlers_of(logger: Logger) -> None:
    """Forget a runner's logger, which Powertools keeps for the process."""
    named = logging.getLogger(logger.service)
    named.removeHandler(logger.registered_handler)
    for name in ("init", "powertools_handler"):
        vars(named).pop(name, None)


@pytest.mark.filterwarnings("ignore:No application metrics to publish")
def test_the_runner_s_powertools_has_the_name_of_its_package(priced: Application) -> None:
    priced.set("FRESHQ_RUNNER", f"{__name__}:tell_names")
    priced.queue.put(1, task_id="a")
    priced.invoke("process_tasks", load_event("process_tasks-doorbell"), Context())
    task = priced.queue.get("a")
    assert task is not None
    assert task.result == ["tests", "tests"]


def tell_names(_task: Any) -> list[str | None]:
    """Run a task with separate loggers and metrics."""
    return [Logger().service, Metrics().namespace]
