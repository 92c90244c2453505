"""`pull --queue` writes the history of a SQL queue once, and the tables tell what the queue tells."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from local.oracle import relations
from samtranslator.yaml_helper import yaml_parse
from typer.testing import CliRunner

from freshq import MatchQueue, Queue
from freshq.stores.sql import SqlStore
from freshq.stores.sql import history as keeper
from freshq_pipeline.cli import app
from freshq_pipeline.cluster import pull_queue as module
from freshq_pipeline.cluster.pull_queue import pull_queue
from freshq_pipeline.errors import BadInput, PipelineError
from tests.pipeline.conftest import table
from tests.support.histories import Life

if TYPE_CHECKING:
    from tests.conftest import Clock
    from tests.pipeline.conftest import Pipeline

TEMPLATE = Path(__file__).parents[2] / "pipeline" / "template.yaml"
WEEK_SECONDS = 7 * 86_400


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the address of an empty queue that keeps a history."""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    queue = Queue.sql(url, history=True)
    queue.create_table()
    queue.close()
    return url


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "events"


def put(url: str, *task_ids: str) -> None:
    queue = Queue.sql(url)
    for task_id in task_ids:
        queue.put("x", task_id)
    queue.close()


def ids(out: Path) -> list[str]:
    """Return the ids of the tasks of the events of a folder, by file."""
    files = sorted(out.rglob("*.jsonl.gz"))
    return [
        json.loads(line)["task_id"]
        for file in files
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]


def prune(url: str) -> None:
    """Delete all events, as upkeep does in the end."""
    store = SqlStore(url, queue="default")
    store.history.prune("default", time.time() + WEEK_SECONDS + 60, 1000)
    store.close()


def copied(source: Path, target: Path) -> Path:
    """Copy a database of SQLite over another, as a backup does and as a restore does."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
    return target


def test_only_new_events_are_pulled(url: str, out: Path) -> None:
    put(url, "a", "b")
    first = pull_queue(url, out)
    assert (first.written, first.events, first.known) == (1, 2, 0)
    again = pull_queue(url, out)
    assert (again.written, again.events, again.known) == (0, 0, 1)
    put(url, "c")
    progress: list[tuple[int, int]] = []
    assert pull_queue(url, out, lambda done, of: progress.append((done, of))).events == 1
    assert progress == [(1, 1)]
    assert ids(out) == ["a", "b", "c"]


def test_every_folder_gets_every_event(url: str, out: Path) -> None:
    put(url, "a")
    pull_queue(url, out)
    put(url, "b")
    assert pull_queue(url, out.with_name("other")).events == 2
    assert pull_queue(url, out).events == 1
    assert ids(out) == ids(out.with_name("other")) == ["a", "b"]


def test_a_pull_that_was_stopped_is_continued(url: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "BATCH_EVENTS", 2)
    put(url, *"abcde")
    write = module._write
    left = [2]

    def stop(target: Path, events: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return write(target, events)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", stop)
        with pytest.raises(KeyboardInterrupt):
            pull_queue(url, out)
    rest = pull_queue(url, out)
    assert (rest.written, rest.known) == (1, 2)
    assert ids(out) == list("abcde")


def test_events_that_were_deleted_before_they_were_pulled_are_a_gap(url: str, out: Path) -> None:
    put(url, "a")
    pull_queue(url, out)
    prune(url)
    assert pull_queue(url, out).written == 0  # what was deleted is in the folder
    put(url, "b")
    prune(url)
    put(url, "c")
    with pytest.raises(BadInput, match="history_seconds"):
        pull_queue(url, out)
    assert ids(out) == ["a"]
    pull_queue(url, out.with_name("new"))
    assert ids(out.with_name("new")) == ["c"]


def test_a_restored_backup_is_not_pulled_into_a_folder_with_undone_events(
    url: str, out: Path, tmp_path: Path
) -> None:
    put(url, "a")
    pull_queue(url, out)
    backup = copied(tmp_path / "tasks.db", tmp_path / "backup.db")
    assert pull_queue(url, out).known == 1
    put(url, "undone")
    pull_queue(url, out)
    copied(backup, tmp_path / "tasks.db")
    # The history has fewer batches than the folder; then, pulled into others, as many and more.
    for task_id in "bcd":
        with pytest.raises(BadInput, match="restored from a backup"):
            pull_queue(url, out)
        put(url, task_id)
        pull_queue(url, out.with_name("other"))
    assert ids(out) == ["a", "undone"]
    assert ids(out.with_name("other")) == ["a", "b", "c", "d"]


def test_a_history_that_begins_anew_after_a_restore_is_pulled(url: str, out: Path, tmp_path: Path) -> None:
    backup = copied(tmp_path / "tasks.db", tmp_path / "backup.db")
    put(url, "undone")
    pull_queue(url, out)
    copied(backup, tmp_path / "tasks.db")
    for history in (False, True):
        with closing(Queue.sql(url, history=history)) as queue:
            queue.create_table()
    put(url, "b")
    with pytest.raises(BadInput, match=r"queue-default-.* 'default'"):
        pull_queue(url, out)
    assert ids(out) == ["undone"]
    pull_queue(url, out.with_name("new"))
    assert ids(out.with_name("new")) == ["b"]


def test_queues_of_several_databases_share_a_folder_unless_they_share_a_name(
    out: Path, tmp_path: Path
) -> None:
    def pull(database: str, name: str) -> None:
        url = f"sqlite:///{tmp_path / database}.db"
        with closing(Queue.sql(url, name=name, history=True)) as queue:
            queue.create_table()
            queue.put("x", f"{database} {name}")
        pull_queue(f"{url}?name={name}", out)

    pull("a", "mail")
    pull("a", "mail-2")
    pull("b", "post")
    with pytest.raises(BadInput, match="'mail': of another database"):
        pull("b", "mail")
    assert sorted(ids(out)) == ["a mail", "a mail-2", "b post"]
    assert len(list(out.iterdir())) == 3


def test_a_backup_from_which_nothing_differs_is_pulled_on(url: str, out: Path, tmp_path: Path) -> None:
    put(url, "a")
    pull_queue(url, out)
    copied(copied(tmp_path / "tasks.db", tmp_path / "backup.db"), tmp_path / "tasks.db")
    put(url, "b")
    assert pull_queue(url, out).events == 1
    assert ids(out) == ["a", "b"]


def test_a_damaged_file_is_named(url: str, out: Path) -> None:
    put(url, "a")
    pull_queue(url, out)
    (file,) = out.rglob("*.jsonl.gz")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(BadInput, match=file.name):
        pull_queue(url, out)
    file.unlink()
    pull_queue(url, out)
    assert ids(out) == ["a"]


def test_a_batch_that_is_deleted_meanwhile_is_not_written(
    url: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, "a")
    events = keeper.SqlHistory.events

    def late(history: keeper.SqlHistory, queue: str, batch: int) -> Any:
        prune(url)
        return events(history, queue, batch)

    monkeypatch.setattr(keeper.SqlHistory, "events", late)
    with pytest.raises(BadInput, match="being deleted"):
        pull_queue(url, out)
    assert not list(out.rglob("*"))


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("URL?name=mail", "'mail' keeps no history; run `freshq table create`"),
        ("dynamodb://T", "use --stack NAME"),
        ("memory://", "needs a queue in a SQL database"),
        ("sqlite:///nowhere.db", "there is no file"),
        ("nothing", "queue: must look like"),
    ],
)
def test_wrong_addresses_are_bad_input(address: str, problem: str, url: str, out: Path) -> None:
    result = CliRunner().invoke(app, ["pull", "--queue", address.replace("URL", url), "--out", str(out)])
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("URL", "'resources' keeps no history; run `freshq match create` with ?history=on"),
        ("dynamodb://T", "use --stack NAME"),
        ("memory://", "would forget everything"),
        ("sqlite:///nowhere.db", "there is no file"),
    ],
)
def test_wrong_addresses_of_resources_are_bad_input(
    address: str, problem: str, tmp_path: Path, out: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    with closing(MatchQueue.sql(url)) as queue:
        queue.create_table()
    given = ["pull", "--match-queue", address.replace("URL", url), "--out", str(out)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not out.exists()
    assert not Path("nowhere.db").exists()


def test_a_database_that_does_not_answer_is_a_failure(out: Path) -> None:
    address = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.raises(PipelineError) as failed:
        pull_queue(address, out)
    assert failed.value.status == 3


@pytest.mark.parametrize("options", [[], ["--stack", "s", "--queue", "sqlite:///t.db"]])
def test_the_command_takes_one_source(options: list[str], out: Path) -> None:
    result = CliRunner().invoke(app, ["pull", *options, "--out", str(out)])
    assert result.exit_code == 2
    assert "either --stack NAME or --queue URL or --match-queue URL" in result.stderr


def test_the_tables_of_a_random_life_say_what_stats_say(
    url: str, out: Path, pipeline: Pipeline, clock: Clock, tmp_path: Path
) -> None:
    store = SqlStore(url, queue="default")
    queue = Queue(
        store, clock=clock, max_age_seconds=60, max_attempts=2, lease_seconds=15, retention_seconds=1e6
    )
    life = Life(queue, clock, seed=5)
    life.live(150)
    pull_queue(url, out)
    pipeline(out, tmp_path / "out")
    life.live(150)
    stats = queue.stats()
    store.close()
    pull_queue(url, out)
    summary = pipeline(out, tmp_path / "out", as_of_ms=math.ceil(clock.now * 1000))
    (total,) = [row for row in table(summary, "ledger", "queue, day") if row["day"] is None]
    assert summary["events_read"] == summary["events_distinct"] == len(ids(out))
    assert summary["events_duplicate"] == 0
    # A put over a task that is over begins another life. The queue knows only the last one.
    last = {row["task_id"]: row["outcome"] for row in table(summary, "tasks", "task_id, life")}
    names = ("taken", "success", "failure", "cancelled", "shed")
    expected = {"pending": stats.pending + stats.delayed} | {name: getattr(stats, name) for name in names}
    assert Counter(last.values()) == {name: count for name, count in expected.items() if count}
    assert total["created"] > len(last) == sum(expected.values())
    assert (total["difference"], total["violations"]) == (0, 0)
    check_saved_queries(summary, total["created"])


def check_saved_queries(summary: dict[str, Any], tasks: int) -> None:
    """Check that the queries of the pipeline's stack run, and that they find the tasks."""
    resources = yaml_parse(TEMPLATE.read_text("utf-8"))["Resources"]
    queries = {
        name: one["Properties"]["QueryString"]
        for name, one in resources.items()
        if one["Type"] == "AWS::Athena::NamedQuery"
    }
    with duckdb.connect() as connection:
        for name, relation in relations(summary, with_day=True).items():
            connection.execute(f"CREATE VIEW {name} AS FROM {relation}")
        found = {name: connection.execute(text).fetchall() for name, text in queries.items()}
    assert sum(row[2] for row in found["FatesQuery"]) == tasks
    assert sum(row[3] for row in found["ShedQuery"]) == sum(row[4] for row in found["FatesQuery"]) > 0
    assert found["WorstMinutesQuery"]
    assert found["LostLeasesQuery"]
    assert found["ViolationsQuery"] == []
