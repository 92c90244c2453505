"""Each kind of source is pulled once and completely, and the tables agree with the queue."""

import gzip
import json
import math
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from local.facts import relations
from moto import mock_aws
from samtranslator.yaml_helper import yaml_parse
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import MatchQueue, Queue
from freshq.aws.landing import landed_event
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.sql import SqlStore
from freshq.stores.sql import history as keeper
from freshq_pipeline.cli import app
from freshq_pipeline.cluster import pull_queue as module
from freshq_pipeline.cluster.pull import bucket_of, pull
from freshq_pipeline.cluster.pull_queue import pull_queue
from freshq_pipeline.cluster.stacks import in_region
from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.storage.folder import Folder
from tests.conftest import REGION, Clock
from tests.pipeline.conftest import Pipeline, table
from tests.support.attached import Shipments
from tests.support.histories import Life
from tests.support.streams import enable_stream, stream_records


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3")
        location: Any = {"LocationConstraint": REGION}
        client.create_bucket(Bucket="landed", CreateBucketConfiguration=location)
        yield client


def land(client: Any, *names: str) -> None:
    for name in names:
        client.put_object(Bucket="landed", Key=f"events/2026/11/21/08/{name}", Body=f"{name}\n".encode())


def files(folder: Path) -> dict[str, str]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.name: path.read_text("utf-8") for path in found}


def test_only_new_objects_are_copied(s3: Any, tmp_path: Path) -> None:
    land(s3, "a", "b")
    s3.put_object(Bucket="landed", Key="errors/broken", Body=b"no event")
    progress: list[tuple[int, int]] = []
    first = pull("landed", tmp_path, s3, lambda done, of: progress.append((done, of)))
    assert (first.copied, first.known) == (2, 0)
    assert files(tmp_path) == {"a": "a\n", "b": "b\n"}
    assert progress[-1] == (4, 4)
    land(s3, "c")
    second = pull("landed", tmp_path, s3)
    assert (second.copied, second.known) == (1, 2)
    assert (tmp_path / "2026/11/21/08/c").read_text("utf-8") == "c\n"


@pytest.mark.parametrize("key", ["events/../../outside", "events//{folder}/outside"])
def test_a_key_outside_the_folder_is_refused(s3: Any, tmp_path: Path, key: str) -> None:
    land(s3, "a")
    s3.put_object(Bucket="landed", Key=key.format(folder=tmp_path), Body=b"x")
    with pytest.raises(BadInput, match="outside"):
        pull("landed", tmp_path / "one" / "two", s3)
    assert not files(tmp_path)


def test_the_command_copies_what_a_run_reads(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(s3, "a")
    monkeypatch.setattr("freshq_pipeline.cluster.pull.bucket_of", lambda _stack: "landed")
    done = CliRunner().invoke(app, ["pull", "--stack", "s", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    assert [one.path for one in Folder(str(tmp_path)).files()] == ["2026/11/21/08/a"]


def test_a_truncated_copy_is_replaced(s3: Any, tmp_path: Path) -> None:
    land(s3, "a")
    pull("landed", tmp_path, s3)
    os.truncate(tmp_path / "2026/11/21/08/a", 1)
    assert pull("landed", tmp_path, s3).copied == 1
    assert files(tmp_path) == {"a": "a\n"}


def test_a_failed_copy_leaves_no_partial_file(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(s3, "a")

    def fail(**_arguments: object) -> None:
        raise ClientError({"Error": {"Code": "SlowDown", "Message": "slow down"}}, "GetObject")

    with monkeypatch.context() as patch:
        patch.setattr(s3, "get_object", fail)
        with pytest.raises(PipelineError, match="slow down"):
            pull("landed", tmp_path, s3)
    assert files(tmp_path) == {}
    assert pull("landed", tmp_path, s3).copied == 1


def stacks(**outputs: str) -> Any:
    """Return a client of CloudFormation with one stack that has these outputs."""
    client = boto3.client("cloudformation")
    listed = [{"OutputKey": name, "OutputValue": value} for name, value in outputs.items()]
    stack = {"StackName": "s", "CreationTime": 0, "StackStatus": "CREATE_COMPLETE", "Outputs": listed}
    stubber = Stubber(client)
    stubber.add_response("describe_stacks", {"Stacks": [stack]}, {"StackName": "s"})
    stubber.activate()
    return client


def no_stacks() -> Any:
    client = boto3.client("cloudformation")
    stubber = Stubber(client)
    message = "Stack with id s does not exist"
    stubber.add_client_error("describe_stacks", "ValidationError", service_message=message)
    stubber.activate()
    return client


def test_the_bucket_is_found_by_the_stack() -> None:
    assert bucket_of("s", stacks(ArchiveBucketName="landed", Other="x")) == "landed"
    with pytest.raises(BadInput, match="Archive=on"):
        bucket_of("s", stacks(Other="x"))
    with pytest.raises(BadInput, match="'s' does not exist"):
        bucket_of("s", no_stacks())


def test_a_client_is_in_the_region_of_aws_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert boto3.client("s3", **in_region()).meta.region_name == "eu-north-1"


def test_a_missing_stack_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = no_stacks()
    monkeypatch.setattr("freshq_pipeline.cluster.pull.boto3.client", lambda _service: client)
    result = CliRunner().invoke(app, ["pull", "--stack", "s", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("freshq-pipeline: stack: 's' does not exist")


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
        queue.put("x", task_id=task_id)
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
    assert pull_queue(url, out).written == 0  # the deleted events are in the folder
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
            queue.put("x", task_id=f"{database} {name}")
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
    ("option", "address", "problem"),
    [
        ("--queue", "URL?name=mail", "'mail' keeps no history; run `freshq table create`"),
        ("--queue", "dynamodb://T", "use --stack NAME"),
        ("--queue", "memory://", "needs a queue in a SQL database"),
        ("--queue", "sqlite:///nowhere.db", "there is no file"),
        ("--queue", "nothing", "queue: must look like"),
        ("--match-queue", "URL", "'resources' keeps no history; run `freshq match create` with ?history=on"),
        ("--match-queue", "dynamodb://T", "use --stack NAME"),
        ("--match-queue", "memory://", "would forget everything"),
        ("--match-queue", "sqlite:///nowhere.db", "there is no file"),
    ],
)
def test_wrong_addresses_are_bad_input(option: str, address: str, problem: str, url: str, out: Path) -> None:
    with closing(MatchQueue.sql(url)) as queue:
        queue.create_table()
    result = CliRunner().invoke(app, ["pull", option, address.replace("URL", url), "--out", str(out)])
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
    named = {"max_age_seconds": 60.0, "max_attempts": 2, "lease_seconds": 15.0, "retention_seconds": 1e6}
    queue = Queue(store, clock=clock, override=True, **named)  # type: ignore[arg-type]  # of their types
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
    # A put over an ended task begins another life. The queue knows only the last one.
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


KEY = TableKey(KeyPart("customer"), KeyPart("number", "N"))
NAMES = tuple(f"c{number % 2}/{number}" for number in range(8))


@pytest.fixture
def orders(dynamodb_local: DynamoDBClient) -> Shipments:
    """Return an attached table with a range key, a change stream and some records."""
    orders = Shipments(dynamodb_local, key=KEY)
    orders.create_attached()
    enable_stream(dynamodb_local, orders.table)
    orders.add(*NAMES)
    return orders


def test_the_ledger_of_an_attached_table_is_what_its_queue_counts(
    orders: Shipments, pipeline: Pipeline, tmp_path: Path
) -> None:
    queue = orders.queue()
    for name in NAMES:
        queue.put(task_id=name)
        orders.clock.advance(1)
    queue.cancel(NAMES[0])
    one, two, three, _four = queue.claim(limit=4)
    orders.clock.advance(1)
    queue.complete(one)
    queue.fail(two, error="no")
    queue.retry(three, delay_seconds=0)
    orders.change(NAMES[5], price={"N": "1"})  # the application's own change is of no task
    stats = queue.stats()
    queue.close()

    records = stream_records(orders.client, orders.table)
    landed = [event for record in records if (event := landed_event(record, "customer"))]
    with mock_aws():
        s3 = boto3.client("s3")
        location: Any = {"LocationConstraint": REGION}
        s3.create_bucket(Bucket="landed", CreateBucketConfiguration=location)
        lines = "".join(f"{json.dumps(event)}\n" for event in landed)
        s3.put_object(Bucket="landed", Key="events/2026/11/22/10/a", Body=lines.encode())
        assert pull("landed", tmp_path / "events", s3).copied == 1
    summary = pipeline(tmp_path / "events", tmp_path / "out")
    (total,) = [row for row in table(summary, "ledger", "queue, day") if row["day"] is None]
    expected = {
        "created": len(NAMES), "pending": stats.pending + stats.delayed, "difference": 0, "violations": 0,
        **{name: getattr(stats, name) for name in ("taken", "success", "failure", "cancelled", "shed")},
    }  # fmt: skip
    assert {name: total[name] for name in expected} == expected
    assert (stats.success, stats.failure, stats.cancelled, stats.taken) == (1, 1, 1, 1)
    assert {row["task_id"] for row in table(summary, "tasks", "task_id")} == set(NAMES)
