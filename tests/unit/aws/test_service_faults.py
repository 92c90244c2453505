"""SNS, SSM and Firehose failing, throttled and silent: what each function does, and that nothing is lost."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.session import Session
from types_boto3_dynamodb import DynamoDBClient

from freshq import StoreError
from freshq.aws import environment
from freshq.aws.archive import Archive
from freshq.aws.http_events import CALL_CONFIG
from freshq.stores.dynamodb import calls
from tests.support.aws_stub import BROKEN, SILENT, THROTTLED
from tests.support.function_chain import RUNS, Chain, chain_on, ring_event
from tests.support.functions import load_event
from tests.support.worker_threads import wait_until
from tests.template.test_template import source

FAULTS: Final = [THROTTLED, BROKEN]
# Requests of one call of the SDK.
TRIES: Final = 3
# The SDK's standard mode: at most 1 s before the second try, 2 s before the third.
BACKOFF_SECONDS: Final = (0, 0, 1, 3)


@pytest.fixture
def chain(dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    """Return the functions, without pauses between the tries of the SDK."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    with chain_on(dynamodb_local) as chain:
        yield chain


def metrics_in(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Return the sums of the metrics emitted since the last call."""
    found: dict[str, float] = {}
    for line in capsys.readouterr().out.splitlines():
        if '"_aws"' in line:
            values = json.loads(line)
            names = [metric["Name"] for metric in values["_aws"]["CloudWatchMetrics"][0]["Metrics"]]
            found |= {name: found.get(name, 0.0) + sum(values[name]) for name in names}
    return found


def ended(chain: Chain) -> tuple[int, int, int]:
    """Return the numbers of done, waiting and taken tasks."""
    stats = chain.queue.stats()
    return stats.success, stats.pending, stats.taken


class TestDoorbell:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_that_passes_is_retried_within_the_call(self, chain: Chain, fault: str) -> None:
        chain.queue.put("work", task_id="a")
        chain.stub.fail("Publish", fault, times=TRIES - 1)
        assert chain.invoke("trigger", chain.inserted("a"))["rang"]
        assert chain.stub.requests["Publish"] == TRIES

    @pytest.mark.filterwarnings("ignore:No application metrics to publish")
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_ring_that_fails_fails_the_batch_and_the_next_call_rings(
        self, chain: Chain, fault: str
    ) -> None:
        chain.queue.put("work", task_id="a")
        chain.stub.fail("Publish", fault)
        with pytest.raises(ClientError, match="Publish"):
            chain.invoke("trigger", chain.inserted("a"))
        assert chain.stub.requests["Publish"] == TRIES
        chain.stub.heal()
        chain.invoke("trigger", chain.inserted("a"))  # the event source repeats the batch
        chain.ring_on()
        assert (ended(chain), RUNS["a"]) == ((1, 0, 0), 1)

    def test_a_batch_that_comes_twice_runs_no_task_twice(self, chain: Chain) -> None:
        chain.queue.put_many([{"payload": 1, "task_id": f"task-{number}"} for number in range(3)])
        batch = chain.inserted(*(f"task-{number}" for number in range(3)))
        assert [chain.invoke("trigger", batch)["rang"] for _ in range(2)] == [True, True]
        first, second = chain.ring_on()
        assert (first["claimed"], second["claimed"]) == (3, 0)
        assert set(RUNS.values()) == {1}

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_tail_call_that_fails_is_counted_and_the_sweep_starts_the_chain_again(
        self,
        chain: Chain,
        capsys: pytest.CaptureFixture[str],
        fault: str,
    ) -> None:
        chain.set("FRESHQ_RUNNER", "tests.support.function_chain:outlast_the_pass")
        chain.queue.put_many([{"payload": 1} for _ in range(3)])
        chain.stub.fail("Publish", fault)
        with pytest.raises(ClientError, match="Publish"):
            chain.invoke("process_tasks", ring_event({}))
        found = metrics_in(capsys)
        assert (found["Passes"], found["TailCallsFailed"], found["TasksSucceeded"]) == (1, 1, 1)
        assert ended(chain) == (1, 2, 0)
        chain.stub.heal()
        assert chain.sweep()["rang"]
        assert ended(chain) == (3, 0, 0)


class TestKillSwitch:
    @pytest.mark.filterwarnings("ignore:No application metrics to publish")
    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("function", ["trigger", "process_tasks"])
    def test_nothing_runs_while_it_cannot_be_read(self, chain: Chain, function: str, fault: str) -> None:
        chain.queue.put("work", task_id="a")
        event = chain.inserted("a") if function == "trigger" else ring_event({})
        chain.stub.fail("GetParameter", fault)
        with pytest.raises(ClientError, match="GetParameter"):
            chain.invoke(function, event)
        assert (chain.stub.requests["GetParameter"], chain.stub.published) == (TRIES, [])
        assert ended(chain) == (0, 1, 0)
        chain.stub.heal()
        chain.invoke(function, event)  # Lambda repeats it
        chain.ring_on()
        assert (ended(chain), RUNS["a"]) == ((1, 0, 0), 1)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_sweep_recovers_and_measures_without_it_and_then_fails(
        self, chain: Chain, capsys: pytest.CaptureFixture[str], fault: str
    ) -> None:
        chain.queue.put("orphan")
        chain.queue.claim(lease_seconds=1)
        chain.ahead.seconds += 2
        chain.stub.fail("GetParameter", fault)
        with pytest.raises(ClientError, match="GetParameter"):
            chain.invoke("sweep", {})
        found = metrics_in(capsys)
        assert (found["TasksRecovered"], found["TasksPending"]) == (1, 1)
        assert "KillSwitchStops" not in found
        chain.stub.heal()
        assert chain.sweep()["rang"]
        assert ended(chain) == (1, 0, 0)


def test_a_sweep_whose_recovery_fails_rings_for_what_waits_and_then_fails(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_queue: object) -> int:
        raise StoreError("a record that nobody can recover")

    chain.queue.put("work", task_id="a")
    with monkeypatch.context() as broken:
        broken.setattr("freshq.queue.admin.Admin.recover", fail)
        with pytest.raises(StoreError):
            chain.invoke("sweep", {})
    assert metrics_in(capsys)["TasksPending"] == 1
    chain.ring_on()
    assert (ended(chain), RUNS["a"]) == ((1, 0, 0), 1)


class TestArchive:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_delivery_that_fails_fails_the_batch_and_is_counted(
        self, chain: Chain, capsys: pytest.CaptureFixture[str], fault: str
    ) -> None:
        chain.stub.fail("PutRecordBatch", fault)
        with pytest.raises(ClientError, match="PutRecordBatch"):
            chain.invoke("archive", load_event("archive-life"))
        assert chain.stub.requests["PutRecordBatch"] == TRIES - 1
        assert metrics_in(capsys) == {"ArchiveFailures": 1}
        chain.stub.heal()
        assert chain.invoke("archive", load_event("archive-life")) == {"batchItemFailures": []}
        assert metrics_in(capsys)["EventsArchived"] == 4

    def test_what_is_rejected_is_sent_again_only_if_a_call_fits_into_the_time(self, chain: Chain) -> None:
        left = iter(
            [60.0, environment.LONGEST_DELIVERY_SECONDS, *[environment.LONGEST_DELIVERY_SECONDS - 1] * 10]
        )
        chain.stub.rejected = [1] * 10
        archive = Archive(
            environment.client_of("firehose", environment.DELIVERY_CONFIG),
            "Archive",
            sleep=lambda _seconds: None,
        )
        records = load_event("archive-life")["Records"]
        delivery = archive.deliver(records, lambda: next(left))
        assert chain.stub.requests["PutRecordBatch"] == 2
        assert (delivery.delivered, delivery.failed_from) == (0, records[0]["dynamodb"]["SequenceNumber"])


class TestSilence:
    @pytest.mark.parametrize(
        ("function", "service", "operation", "config"),
        [
            ("trigger", "sns", "Publish", "SMALL_CALL_CONFIG"),
            ("process_tasks", "ssm", "GetParameter", "SMALL_CALL_CONFIG"),
            ("archive", "firehose", "PutRecordBatch", "DELIVERY_CONFIG"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:No application metrics to publish")
    def test_a_call_that_is_never_answered_ends_with_an_error_after_a_few_tries(
        self,
        chain: Chain,
        monkeypatch: pytest.MonkeyPatch,
        function: str,
        service: str,
        operation: str,
        config: str,
    ) -> None:
        give_up_soon(service, monkeypatch)
        chain.queue.put("work", task_id="a")
        chain.stub.fail(operation, SILENT)
        events = {
            "trigger": chain.inserted("a"),
            "process_tasks": ring_event({}),
            "archive": load_event("archive-life"),
        }
        with pytest.raises(ReadTimeoutError):
            chain.invoke(function, events[function])
        attempts = attempts_of(getattr(calls if config == "CLIENT_CONFIG" else environment, config))
        wait_until(lambda: chain.stub.requests[operation] == attempts)  # the last may be on its way
        assert ended(chain) == (0, 1, 0)

    def test_the_longest_call_ends_before_the_timeout_of_every_function_that_makes_it(self) -> None:
        functions = source()["Resources"]
        small = longest_seconds(environment.SMALL_CALL_CONFIG)
        # A call of DynamoDB that is not answered is sent again by freshq.
        table = 2 * longest_seconds(calls.CLIENT_CONFIG)
        assert small + table < functions["TriggerFunction"]["Properties"]["Timeout"]
        assert small + table < functions["SweepFunction"]["Properties"]["Timeout"]
        assert 2 * longest_seconds(CALL_CONFIG) < functions["HttpApiFunction"]["Properties"]["Timeout"]
        assert longest_seconds(environment.DELIVERY_CONFIG) <= environment.LONGEST_DELIVERY_SECONDS
        assert functions["ArchiveFunction"]["Properties"]["Timeout"] > environment.LONGEST_DELIVERY_SECONDS


def give_up_soon(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of one service's clients."""
    create = Session.create_client

    def impatient(session: Session, name: str, **options: Any) -> Any:
        if name == service:
            options["config"] = options["config"].merge(Config(read_timeout=0.05))
        return create(session, name, **options)

    monkeypatch.setattr(Session, "create_client", impatient)


def attempts_of(config: Config) -> int:
    """Return how often a call is sent."""
    return int(config.retries["total_max_attempts"])  # type: ignore[attr-defined]  # made at run time


def longest_seconds(config: Config) -> float:
    """Return how long a call takes that is never answered."""
    seconds = config.connect_timeout + config.read_timeout  # type: ignore[attr-defined]
    return float(attempts_of(config) * seconds + BACKOFF_SECONDS[attempts_of(config)])
