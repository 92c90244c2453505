"""The benchmark of the worker measures correctly."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import wake, worker
from benchmarks.figures import figures_of, rotated
from benchmarks.library_pages import FILES, HAND, WORKER, ratio_cell, ratio_rounds
from benchmarks.peers import NOT_INSTALLED, PAYLOAD, main, sqlite_huey
from benchmarks.worker import together

from freshq import Queue
from freshq.telemetry import Outcome
from tests.support.readings import counts

# One message a file, taken by renaming it.
HUEY = """
import pathlib, threading, uuid


class Huey:
    def __init__(self, storage_class, filename, results):
        self.folder = pathlib.Path(filename)
        self.folder.mkdir(exist_ok=True)

    def task(self):
        def decorate(function):
            self.function = function
            return lambda payload: (self.folder / uuid.uuid4().hex).write_text(payload["text"])

        return decorate

    def create_consumer(self, workers, periodic):
        return Consumer(self)


class Consumer:
    def __init__(self, queue):
        self.queue, self.thread = queue, threading.Thread(target=self.work)

    def work(self):
        for file in self.queue.folder.iterdir():
            try:
                file.rename(file.with_suffix(".taken")).unlink()
            except FileNotFoundError:
                continue
            self.queue.function({})

    def start(self):
        self.thread.start()

    def stop(self):
        self.thread.join()
"""


@pytest.mark.parametrize("contender", [HAND, WORKER])
def test_everything_is_done_when_it_is_measured(tmp_path: Path, contender: str) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    spans = together(contender, url, 30, 4, 2)
    assert all(span.first < span.last and span.processor_seconds > 0 for span in spans)
    queue = Queue.sql(url)
    assert counts(queue.stats()) == {"success": 30}
    queue.close()


def test_a_task_that_was_given_back_is_not_done() -> None:
    with Queue.memory() as queue:
        queue.put("work")
        (claim,) = queue.claim()
    watch = worker.Watch()
    watch.run(claim.task)
    watch.settled(claim, Outcome.GIVEN_BACK, 0.0, None)
    assert (watch.successes, watch.span()) == ([], None)
    watch.settled(claim, Outcome.SUCCEEDED, 0.0, None)
    assert len(watch.successes) == 1
    assert watch.span()


def test_a_task_for_an_idle_worker_starts_before_its_result_is_known(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with Queue.sql(url) as queue:
        queue.create_table()
        with wake.working(url):
            found = wake.round_trips(queue, 3)
        assert len(found) == 3
        assert all(0 < each["start_ms"] < each["result_ms"] for each in found)
        assert counts(queue.stats()) == {"success": 3}


def test_a_peer_begins_with_all_and_says_what_it_did(tmp_path: Path) -> None:
    """By huey's interface, as no other queue is installed here."""
    (tmp_path / "huey").mkdir()
    (tmp_path / "huey" / "__init__.py").write_text(HUEY)
    (tmp_path / "huey" / "storage.py").write_text("class SqliteStorage:\n    pass\n")
    metadata = tmp_path / "huey-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: huey\nVersion: 1.0\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    where = str(tmp_path / "tasks")
    assert worker.fill_peer(str(python), "huey", where, 5) == "1.0"
    spans = worker.of_peer(str(python), "huey", where, 5, (1, 2))
    assert 1 <= len(spans) <= 2
    assert all(span.first <= span.last for span in spans)
    assert not [*(tmp_path / "tasks").iterdir()]


def test_payloads_have_a_kilobyte() -> None:
    assert 1000 <= len(json.dumps(PAYLOAD)) <= 1024


def test_a_ratio_is_of_two_figures_of_one_round() -> None:
    def rounds(*rates: float) -> list[dict[str, float]]:
        return [{"tasks_per_second": rate} for rate in rates]

    contenders = {WORKER: rounds(100, 300, 100), HAND: rounds(50, 100, 100)}
    assert ratio_rounds(contenders, HAND) == [2.0, 3.0, 1.0]


def test_a_peer_that_is_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huey", None)
    assert main("fill", "huey", "unused", 1) == NOT_INSTALLED
    assert "huey" in capsys.readouterr().err


@pytest.mark.parametrize(("rate", "shown"), [(80, "0.80 (0.80 to 0.80)"), (79, "**0.79 (0.79 to 0.79)**")])
def test_a_ratio_below_its_aim_is_bold(rate: float, shown: str) -> None:
    contenders = {WORKER: [{"tasks_per_second": rate}], HAND: [{"tasks_per_second": 100}]}
    assert ratio_cell(contenders, HAND, "1") == shown
    slower = {WORKER: contenders[WORKER], "oban": contenders[HAND]}
    assert ["**" in ratio_cell(slower, "oban", concurrency) for concurrency in ("8", "256")] == [True, False]


def test_each_contender_has_each_place_as_often_as_the_others() -> None:
    places = [rotated("abc", number).index("a") for number in range(6)]
    assert sorted(places) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("file", FILES.values())
def test_a_contender_has_as_many_tasks_in_each_round(file: str) -> None:
    found = figures_of(file)
    for store in worker.PEERS_ON:
        for contenders in found[store].values():
            for name, rounds in contenders.items():
                assert len(rounds) == found["rounds"], name
                assert len({each["tasks"] for each in rounds}) == 1, name


def test_huey_waits_for_the_disk_no_more_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Storage:
        def _create_connection(self) -> SimpleNamespace:
            return SimpleNamespace(execute=said.append)

    def queue(storage_class: Any, **_options: object) -> object:
        return storage_class()._create_connection()

    monkeypatch.setitem(sys.modules, "huey", SimpleNamespace(Huey=queue))
    monkeypatch.setitem(sys.modules, "huey.storage", SimpleNamespace(SqliteStorage=Storage))
    sqlite_huey("unused")
    assert said == ["PRAGMA synchronous=NORMAL"]
