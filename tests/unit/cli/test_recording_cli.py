"""The command `freshq recording`, and what reads its file."""

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from freshq import Queue
from freshq.cli.main import app
from freshq.cli.stacks import Stack
from freshq.queue.core import core_of
from freshq.simulate import read_recording
from freshq.testing import ManualClock


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"FRESHQ_QUEUE": ""})


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a queue with a history: of 30 tasks, 20 ran."""
    address = f"sqlite:///{tmp_path}/tasks.db"
    clock = ManualClock()
    with closing(Queue.sql(address, clock=clock, max_age_seconds=60.0, history=True)) as queue:
        queue.create_table()
        for n in range(30):
            value, decay = (n + 0.1, "linear") if n % 2 else (None, None)
            queue.put({"secret": n}, group=f"g{n % 3}", priority=n % 2, value=value, decay=decay)
            clock.advance(1.0)
        for _ in range(20):
            (claim,) = queue.claim()
            clock.advance(0.25)
            queue.complete(claim)
    return address


def test_a_recording_of_a_history_is_simulated(tmp_path: Path, url: str) -> None:
    out = tmp_path / "load.jsonl.gz"
    done = invoke("recording", "--queue", url, "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("30 tasks written to ")
    assert "10 of them never ran to their end" in done.stdout
    text = gzip.decompress(out.read_bytes()).decode()
    assert "secret" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum("service_seconds" in line for line in lines) == 20
    assert {line["service_seconds"] for line in lines if "service_seconds" in line} == {0.25}
    assert {line["deadline_seconds"] for line in lines} == {60.0}
    assert {line["group"] for line in lines} == {"g0", "g1", "g2"}
    simulated = invoke("simulate", "--arrivals", str(out), "--servers", "1", "--json")
    assert json.loads(simulated.stdout)["served_in_time"] == 30


def test_the_formats_have_the_same_content(tmp_path: Path, url: str) -> None:
    pytest.importorskip("pyarrow")
    answers = []
    names = ("a.jsonl", "b.jsonl.gz", "c.parquet")
    for name in names:
        done = invoke("recording", "--queue", url, "--out", str(tmp_path / name), "--json")
        answers.append({**json.loads(done.stdout), "out": ""})
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["tasks"] == 30
    first, *others = (read_recording(tmp_path / name) for name in names)
    assert list(first.values[:4]) == [1.0, 1.1, 1.0, 3.1]
    for other in others:
        assert other.at == first.at
        assert other.groups == first.groups
        assert (other.values, other.decays) == (first.values, first.decays)
        assert list(map(repr, other.service)) == list(map(repr, first.service))


def landed(url: str) -> list[dict[str, Any]]:
    with closing(Queue.sql(url)) as queue:
        history = core_of(queue).store.history
        assert history is not None
        history.add_batches(queue.name)
        return [dict(event) for event in history.events(queue.name, 1)]


def test_a_recording_of_a_folder_of_events(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "events"
    (folder / "2023").mkdir(parents=True)
    lines = [json.dumps(event) for event in landed(url)]
    (folder / "2023" / "first.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:40]).encode()))
    (folder / "2023" / "second.jsonl").write_text("\n".join([*lines[40:], "{broken"]))
    out = tmp_path / "load.jsonl"
    done = invoke("recording", "--events", str(folder), "--out", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {
        "out": str(out), "tasks": 30, "without_service_seconds": 10, "left_out": 0, "damaged_events": 1,
    }  # fmt: skip
    assert "1 damaged event left out" in done.stderr
    other = invoke(
        "recording", "--events", str(folder), "--name", "other", "--out", str(tmp_path / "no.jsonl")
    )
    assert other.exit_code != 0
    assert "no event shows a put of a task of queue 'other'" in other.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"events", "load.jsonl", "tasks.db"}


def test_a_recording_of_the_archive_of_a_stack(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")

    lines = [json.dumps(event) for event in landed(url)]
    outputs = {"ArchiveBucketName": "archive", "QueueName": "default"}
    stack = Stack("app", "CREATE_COMPLETE", outputs, {})
    monkeypatch.setattr(Stack, "describe", lambda _name: stack)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        s3 = boto3.client("s3", "us-east-1")
        s3.create_bucket(Bucket="archive")
        for number, part in enumerate((lines[:50], lines[50:])):
            body = gzip.compress("\n".join(part).encode())
            s3.put_object(Bucket="archive", Key=f"events/2023/11/14/22/{number}.gz", Body=body)
        out = tmp_path / "load.jsonl"
        done = invoke("recording", "--stack", "app", "--out", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["tasks"] == 30
    del outputs["ArchiveBucketName"]
    without = invoke("recording", "--stack", "app", "--out", str(out))
    assert "'app' has no archive; deploy it with" in without.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--out", "load.jsonl"], "queue: give one of --queue URL, --stack NAME and --events FOLDER"),
        (["--events", "no", "--out", "load.jsonl"], "events: 'no' is no folder with files"),
        (["--queue", "memory://", "--out", "load.jsonl"], "queue: must be in a SQL database"),
        (["--events", ".", "--queue", "memory://", "--out", "load.jsonl"], "give one of"),
        (["--events", ".", "--out", "no/load.jsonl"], "out: there is no folder 'no'"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], why: str) -> None:
    done = invoke("recording", *arguments)
    assert done.exit_code != 0
    assert why in done.stderr
    assert done.stdout == ""


def test_a_queue_without_a_history(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/tasks.db"
    with closing(Queue.sql(address)) as queue:
        queue.create_table()
    done = invoke("recording", "--queue", address, "--out", str(tmp_path / "load.jsonl"))
    assert "keeps no history; run `freshq table create` with ?history=on" in done.stderr
