"""`freshq metrics`: the gauges of a queue, as Prometheus reads them."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from freshq import Queue
from freshq.cli.commands.metrics import metrics_server
from freshq.cli.main import app
from freshq.queue.gauges import GAUGES, gauges
from freshq.telemetry.prometheus import prometheus_name
from freshq.testing import FaultyStore
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


@contextmanager
def served(queue: Queue) -> Iterator[str]:
    with metrics_server(queue, "::1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://[::1]:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def scraped(url: str) -> dict[str, float]:
    """Return the values by name, of the one queue that there is."""
    answer = httpx.get(url, timeout=PATIENCE_SECONDS).raise_for_status()
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["queue"] for sample in samples} == {"quotes"}
    return {sample.name: sample.value for sample in samples}


def test_a_scrape_reads_the_queue(clock: Clock) -> None:
    queue = Queue.memory(clock=clock, name="quotes", max_age_seconds=60)
    queue.put_many([{"payload": "secret"} for _ in range(5)])
    queue.put("secret", delay_seconds=30)
    clock.advance(3)
    queue.complete(queue.claim(2)[0])
    with served(queue) as url:
        found = scraped(url)
        assert (found["freshq_tasks_pending"], found["freshq_tasks_delayed"]) == (3, 1)
        assert (found["freshq_tasks_taken"], found["freshq_queue_paused"]) == (1, 0)
        assert found["freshq_oldest_pending_seconds"] == pytest.approx(3, abs=0.01)
        assert found["freshq_served_per_second"] > 0
        queue.pause()
        queue.cancel(queue.put("secret").task_id)
        assert scraped(url)["freshq_queue_paused"] == 1


def test_an_age_that_there_is_not_is_missing(clock: Clock) -> None:
    with served(Queue.memory(clock=clock, name="quotes")) as url:
        found = scraped(url)
    assert found["freshq_tasks_pending"] == 0
    assert "freshq_oldest_pending_seconds" not in found


def test_a_store_that_does_not_answer_fails_the_scrape_and_not_the_server() -> None:
    store = FaultyStore()
    with served(store.queue(name="quotes")) as url:
        with store.down():
            assert httpx.get(url, timeout=PATIENCE_SECONDS).status_code == 503
        assert scraped(url)["freshq_tasks_pending"] == 0
        assert httpx.get(url.replace("/metrics", "/other"), timeout=PATIENCE_SECONDS).status_code == 404


def test_names_are_those_of_the_page_on_operations() -> None:
    queue = Queue.memory()
    queue.put("wrong", task_id="dead")
    queue.cancel("dead", dead=True)
    queue.put("work", value=2)
    names = gauges(queue.stats(), queue.pressure(), paused=False).keys()
    listed = set(re.findall(r"\b[A-Z][A-Za-z]+\b", OPERATIONS.read_text("utf-8")))
    assert names == GAUGES.keys() - {"OldestSnapshotSeconds", "DeadRows"}, "of PostgreSQL"
    assert names <= listed
    assert prometheus_name("OldestPendingSeconds") == "freshq_oldest_pending_seconds"


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_told_to(sqlite_url: str, told: signal.Signals) -> None:
    program = [
        sys.executable,
        "-m",
        "freshq.cli",
        "metrics",
        "--queue",
        sqlite_url,
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            assert "freshq_tasks_pending" in httpx.get(url, timeout=PATIENCE_SECONDS).text
            process.send_signal(told)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
        _out, errors = process.communicate()
    assert errors == ""


def test_wrong_use_is_one_line(sqlite_url: str) -> None:
    for arguments, why in (
        (["--host", "256.1.1.1"], "port: cannot listen"),
        (["--host", "\udcff"], "'--host': it is not UTF-8"),
        (["--queue", "memory://"], "memory://"),
    ):
        done = CliRunner().invoke(app, ["metrics", "--port", "0", "--queue", sqlite_url, *arguments])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert why in done.stderr
