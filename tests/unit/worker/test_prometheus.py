"""Counters for Prometheus: each event of a queue is counted once, by queue and kind."""

import math
import os
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from freshq import Handlers, Queue, Reject, Retry, Worker
from freshq.errors import Overloaded, StoreError
from freshq.model.telemetry import everywhere
from freshq.policy import BacklogLimit, ShedReason, WhenFull
from freshq.queue.core import core_of
from freshq.telemetry import OpenTelemetry, Prometheus, Telemetry
from freshq.telemetry.prometheus import MOST_KINDS, OTHER_KINDS, exposition
from freshq.testing import FaultyStore
from tests.conftest import Clock
from tests.support.work_process import Work, until


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def counts(registry: CollectorRegistry, **labels: str) -> dict[str, float]:
    """Return the samples with these labels that are not 0, without buckets and the times of creation."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {
        sample.name.removeprefix("freshq_"): sample.value
        for sample in samples
        if labels.items() <= sample.labels.items()
        and sample.value
        and not sample.name.endswith(("_bucket", "_sum"))
        and not sample.name.endswith("seconds_created")
        and not (sample.name.endswith("_created") and "_total" not in sample.name)
    }


def test_each_outcome_of_a_put_is_counted_by_kind(registry: CollectorRegistry, clock: Clock) -> None:
    queue = Queue.memory(clock=clock, name="q", telemetry=Prometheus(registry))
    queue.put_many([{"payload": 1, "kind": "a", "value": 3}, {"payload": 2, "kind": "b"}])
    for _ in range(2):
        queue.put(1, task_id="same", kind="a")
    queue.put(2, task_id="same", kind="a", on_conflict="update")
    assert counts(registry, queue="q", kind="a") == {
        "tasks_created_total": 2, "tasks_duplicate_total": 1, "tasks_updated_total": 1,
        "value_offered_total": 3,
    }  # fmt: skip
    assert counts(registry, queue="q", kind="b") == {"tasks_created_total": 1}


def test_puts_that_write_nothing_are_counted_by_their_cause(registry: CollectorRegistry) -> None:
    store = FaultyStore()
    queue = store.queue(
        name="q", telemetry=Prometheus(registry), backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST)
    )
    queue.put(1)
    with pytest.raises(Overloaded):
        queue.put(2)
    with store.down(), pytest.raises(StoreError):
        queue.put(3)
    assert counts(registry, queue="q", kind="") == {
        "tasks_created_total": 1, "tasks_turned_away_total": 1, "tasks_not_written_total": 1,
    }  # fmt: skip
    assert counts(registry, queue="q", reason="overflow") == {"tasks_shed_total": 1}


def test_the_ends_of_runs_and_their_times_are_counted(registry: CollectorRegistry) -> None:
    telemetry = Prometheus(registry)
    queue = Queue.memory(name="q", telemetry=telemetry, max_attempts=2)
    handlers = Handlers()

    @handlers.on("works")
    def works(_task: object) -> None: ...

    @handlers.on("retries")
    def retries(_task: object) -> None:
        raise Retry(delay_seconds=3600)

    @handlers.on("fails")
    def fails(_task: object) -> None:
        raise Reject("no")

    for kind in ("works", "retries", "fails"):
        queue.put(1, kind=kind, value=2)
    telemetry.expect("q", ["works", "never"])
    Worker(queue, handlers, idle_exit_seconds=0.05).run()
    common = {
        "tasks_created_total": 1,
        "tasks_claimed_total": 1,
        "claim_age_seconds_count": 1,
        "value_offered_total": 2,
    }
    ran = common | {"run_seconds_count": 1}
    assert counts(registry, kind="works") == ran | {"tasks_succeeded_total": 1, "value_delivered_total": 2}
    assert counts(registry, kind="retries") == ran | {"tasks_retried_total": 1}
    assert counts(registry, kind="fails") == ran | {"tasks_failed_total": 1}
    never = {"queue": "q", "kind": "never"}
    assert registry.get_sample_value("freshq_tasks_failed_total", never) == 0


def test_a_last_lease_that_expires_is_a_dead_letter(registry: CollectorRegistry, clock: Clock) -> None:
    telemetry = Prometheus(registry)
    queue = Queue.memory(clock=clock, max_attempts=1, lease_seconds=10, telemetry=telemetry)
    queue.put(1, kind="kills")
    assert len(queue.claim(1)) == 1
    clock.advance(11)
    queue.admin.recover()
    assert counts(registry, kind="kills")["tasks_failed_total"] == 1


def test_stale_tasks_and_evictions_are_counted_by_reason(
    registry: CollectorRegistry, clock: Clock, sqlite_url: str
) -> None:
    queue = Queue.sql(
        sqlite_url, clock=clock, name="q", telemetry=Prometheus(registry), backlog=BacklogLimit(2)
    )
    for _ in range(3):
        queue.put(1, max_age_seconds=5)
    clock.advance(6)
    assert queue.claim(1) == []
    queue.admin.upkeep()
    assert counts(registry, queue="q", reason="expired") == {"tasks_shed_total": 2}
    assert counts(registry, queue="q", reason="overflow") == {"tasks_shed_total": 1}
    queue.close()


def test_kinds_that_a_producer_makes_up_do_not_grow_without_bound(registry: CollectorRegistry) -> None:
    queue = Queue.memory(name="q", telemetry=Prometheus(registry))
    queue.put_many([{"payload": 1, "kind": f"k{number}"} for number in range(MOST_KINDS + 7)])
    assert counts(registry, kind=f"k{MOST_KINDS - 1}") == {"tasks_created_total": 1}
    assert counts(registry, kind=OTHER_KINDS) == {"tasks_created_total": 7}


def test_all_queues_are_counted_once_beside_their_own_telemetry(registry: CollectorRegistry) -> None:
    prometheus, own = Prometheus(registry), OpenTelemetry()
    queues = [Queue.memory(name="before"), Queue.memory(name="own", telemetry=own)]
    with everywhere(prometheus):
        queues += [Queue.memory(name="inside"), Queue.memory(name="twice", telemetry=Prometheus(registry))]
        assert core_of(queues[1]).telemetries == (own, prometheus)
        for queue in queues:
            queue.put(1)
            Worker(queue, lambda _task: None, idle_exit_seconds=0.05).run()
            assert counts(registry, queue=queue.name)["tasks_succeeded_total"] == 1
            assert counts(registry, queue=queue.name)["tasks_created_total"] == 1
    queues[0].put(2)
    assert counts(registry, queue="before")["tasks_created_total"] == 1


class Broken(Telemetry):
    """Fails at each call."""

    def shed(self, queue: str, reason: ShedReason, tasks: int) -> None:
        """Fail."""
        raise OSError(queue, reason, tasks)

    def exhausted(self, tasks: object) -> None:
        """Fail."""
        raise OSError(tasks)


def test_a_failure_of_one_leaves_the_others_counting(registry: CollectorRegistry, clock: Clock) -> None:
    with everywhere(Prometheus(registry)):
        queue = Queue.memory(
            clock=clock,
            name="q",
            max_attempts=1,
            telemetry=Broken(),
            lease_seconds=10,
            backlog=BacklogLimit(1),
        )
        queue.put_many([{"payload": 1}, {"payload": 1, "kind": "kills"}])
        queue.claim(1)
        clock.advance(11)
        queue.admin.upkeep()
    assert counts(registry, queue="q", reason="overflow") == {"tasks_shed_total": 1}
    assert counts(registry, queue="q", kind="kills")["tasks_failed_total"] == 1


APP = """
import os, signal
from prometheus_client import Counter
from freshq import Handlers, Queue
mine = Counter("app_mails", "Mails.")
handlers = Handlers()
other = Queue.sql(os.environ["OTHER"], name="other")

@handlers.on("mail")
def mail(task):
    other.put("next", kind="follow")
    mine.inc()
    if task.attempts == 1 and task.payload == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def scraped(work: Work) -> dict[str, float]:
    status, text = work.page("/metrics")
    assert status == 200, text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        ",".join([sample.name, *filter(None, sample.labels.values())]): sample.value for sample in samples
    }


def test_a_worker_serves_the_counters_of_its_processes_also_of_dead_ones(
    folder: Path, sqlite_url: str
) -> None:
    with Queue.sql(sqlite_url) as queue:
        queue.configure(lease_seconds=3)
        queue.put_many([{"payload": 1, "kind": "mail"} for _ in range(5)])
        queue.put("dies", kind="mail")
    environment = {**os.environ, "OTHER": sqlite_url, "TMPDIR": str(folder)}
    options = ("--processes", "2", "--health-port", "0")
    with Work(folder, sqlite_url, *options, runner="app:handlers", **environment) as work:
        with Queue.sql(sqlite_url) as queue:
            until(lambda: queue.stats().success == 6)
        found = scraped(work)
        assert work.page("/live")[0] == 200
        assert work.end() == 0
    # The task that killed its process ran twice, and so may others that ran there.
    assert found["app_mails_total"] >= 7
    assert found["freshq_tasks_created_total,follow,other"] >= found["app_mails_total"]
    assert found["freshq_tasks_failed_total,mail,default"] == 0
    assert [*folder.glob("freshq-metrics-*")] == []


def test_a_file_that_a_process_has_just_made_holds_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "counter_1.db").touch()
    assert exposition(str(tmp_path)) == b""


def test_a_worker_alone_serves_its_registry(folder: Path, sqlite_url: str) -> None:
    with Queue.sql(sqlite_url) as queue:
        queue.put(1, kind="mail")
    environment = {**os.environ, "OTHER": sqlite_url, "TMPDIR": str(folder)}
    with Work(folder, sqlite_url, "--health-port", "0", runner="app:handlers", **environment) as work:
        until(lambda: scraped(work)["freshq_tasks_succeeded_total,mail,default"] == 1)
        found = scraped(work)
        assert work.end() == 0
    assert found["app_mails_total"] == found["freshq_run_seconds_count,mail,default"] == 1
    assert found["process_start_time_seconds"] > 0


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: Prometheus(cast("Any", [])),
            "registry: must be a prometheus_client.CollectorRegistry",
        ),
        (
            lambda: OpenTelemetry(cast("Any", "x")),
            "tracer_provider: must be an opentelemetry.trace.",
        ),
        (
            lambda: OpenTelemetry(None, cast("Any", 1)),
            "meter_provider: must be an opentelemetry.metrics.MeterProvider or None, got 1",
        ),
        (lambda: Queue.memory(clock=cast("Any", datetime.now)), "clock: must return the seconds since 1970"),
        (lambda: Queue.memory(clock=time.time_ns), "clock: must return the seconds since 1970"),
        (lambda: Queue.memory(clock=lambda: math.nan), "clock: must return the seconds since 1970"),
    ],
)
def test_a_wrong_object_is_named(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}"):
        make()


def test_a_taken_name_leaves_no_metric_behind(registry: CollectorRegistry) -> None:
    taken = Counter("freshq_tasks_shed", "The last to be registered.", registry=registry)
    with pytest.raises(ValueError, match=r"^registry: has a metric of this name already"):
        Prometheus(registry)
    assert {family.name for family in registry.collect()} == {"freshq_tasks_shed"}
    registry.unregister(taken)
    telemetry = Prometheus(registry)
    Queue.memory(name="q", telemetry=telemetry).put(1)
    assert counts(registry, queue="q") == {"tasks_created_total": 1}
