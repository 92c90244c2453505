"""A command's OpenLineage events: what they say, where they go, and what a receiver that fails costs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from openlineage.client import event_v2, facet_v2, set_producer
from openlineage.client.serde import Serde

from freshq_pipeline.errors import BAD_INPUT_STATUS, BadInput, Unfinished
from freshq_pipeline.report import lineage as lineage_module
from freshq_pipeline.report.contract import contract
from freshq_pipeline.report.ending import Ending
from freshq_pipeline.report.lineage import Lineage, Moment, lineage_of, setting_of_client
from freshq_pipeline.report.lineage_events import PRODUCER, event_of
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.results import NEW
from tests.pipeline.conftest import Pipeline
from tests.pipeline.recording import small, write_lines
from tests.support.worker_threads import wait_until

COMMAND: Final = Path(sys.executable).parent / "freshq-pipeline"
SUMMARY: Final[dict[str, Any]] = {
    "run_id": "r1", "events_read": 29, "files_read": 1, "queues": [], NEW: 0, "ledger_violations": 0,
}  # fmt: skip
FACETS: Final = {
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "documentation": facet_v2.documentation_dataset.DocumentationDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "inputStatistics": facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
    "tags": facet_v2.tags_run.TagsRunFacet,
}
ADVICE: Final = "; the tables do not depend on them\n"


@pytest.fixture(autouse=True)
def _no_settings_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Clear the client's settings; it sets more of them from those that it finds."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("OPENLINEAGE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def facet(name: str, given: dict[str, Any]) -> Any:
    """Return a facet of the client's own class, made of what was sent."""
    kind: Any = FACETS[name]
    values = {key: value for key, value in given.items() if not key.startswith("_")}
    made = kind(**values)
    assert given["_schemaURL"] == kind._get_schema()
    assert given["_producer"] == PRODUCER
    return made


def checked(sent: dict[str, Any]) -> dict[str, Any]:
    """Return an event after a check by the client's classes, which refuse unknown fields and wrong values."""
    for holder, kind in (("run", "facets"), ("job", "facets")):
        for name, given in sent[holder].get(kind, {}).items():
            facet(name, given)
    for dataset in (*sent["inputs"], *sent["outputs"]):
        for name, given in {**dataset.get("facets", {}), **dataset.get("inputFacets", {})}.items():
            facet(name, given)
    run = event_v2.Run(**sent["run"])
    job = event_v2.Job(**sent["job"])
    inputs = [event_v2.InputDataset(**one) for one in sent["inputs"]]
    outputs = [event_v2.OutputDataset(**one) for one in sent["outputs"]]
    values = {name: sent[name] for name in ("eventTime", "producer")}
    event_v2.RunEvent(**values, run=run, job=job, inputs=inputs, outputs=outputs,
                      eventType=event_v2.RunState(sent["eventType"]))  # fmt: skip
    return sent


def as_sent(moment: Moment) -> dict[str, Any]:
    return checked(json.loads(Serde.to_json(event_of(moment))))


def moment(kind: str, tmp_path: Path, **more: Any) -> Moment:
    set_producer(PRODUCER)
    places = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    run = "01234567-89ab-7def-8123-456789abcdef"
    return Moment(kind, "2026-01-01T00:00:00+00:00", "run", run, *places, **more)


def test_an_event_names_inputs_and_tables_with_their_columns(tmp_path: Path) -> None:
    sent = as_sent(moment("COMPLETE", tmp_path, summary=SUMMARY))
    (read,) = sent["inputs"]
    assert (read["namespace"], read["name"]) == ("file", str(tmp_path / "in"))
    assert (read["inputFacets"]["inputStatistics"]["rowCount"], sent["eventType"]) == (29, "COMPLETE")
    assert [one["name"] for one in sent["outputs"]] == [f"{tmp_path}/out/tables/{name}" for name in TABLES]
    for table, one in zip(contract()["schema"], sent["outputs"], strict=True):
        fields = one["facets"]["schema"]["fields"]
        assert [(field["name"], field["type"]) for field in fields] == [
            (column["name"], column["physicalType"]) for column in table["properties"]
        ]
        assert one["facets"]["version"]["datasetVersion"] == "r1"
    histogram = next(
        field
        for field in sent["outputs"][1]["facets"]["schema"]["fields"]
        if field["name"] == "wait_histogram"
    )
    assert [field["name"] for field in histogram["fields"]] == ["bucket", "count"]
    assert sent["job"]["namespace"] == "freshq"
    assert sent["job"]["name"].startswith("freshq-pipeline.run.")
    assert "/" not in sent["job"]["name"]


def test_a_failure_and_a_signal(tmp_path: Path) -> None:
    failed = as_sent(moment("FAIL", tmp_path, error=BadInput("events: is empty")))
    assert failed["run"]["facets"]["errorMessage"]["message"] == "events: is empty"
    assert "version" not in failed["outputs"][0]["facets"]
    assert "errorMessage" not in as_sent(moment("ABORT", tmp_path, error=SystemExit(143)))["run"]["facets"]


def test_an_address_in_a_bucket(tmp_path: Path) -> None:
    start = moment("START", tmp_path)
    bucket = Folder.__new__(Folder)
    bucket.uri, bucket.local = "s3a://landed/events", False
    sent = as_sent(Moment("START", start.at, "stream", start.run_id, bucket, bucket))
    assert (sent["inputs"][0]["namespace"], sent["inputs"][0]["name"]) == ("s3://landed", "events")
    assert sent["outputs"][0]["name"] == "events/tables/tasks"
    assert sent["job"]["facets"]["jobType"]["processingType"] == "STREAMING"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "must be http://HOST"),
        ("ftp://host/x", "must be http://HOST"),
        ("http://", "must be http://HOST"),
        ("http:///path", "must be http://HOST"),
        ("http://host:99999", "must be http://HOST"),
        ("kafka://user:secret@host", "must be http://HOST"),
        ("{tmp}", "must be a file in an existing folder"),
        ("{tmp}/none/x.json", "must be a file in an existing folder"),
        ("{tmp}/in/x.json", "would be read as one"),
    ],
)
def test_wrong_targets(target: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    places = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    with pytest.raises(BadInput, match=r"^lineage: ") as refused:
        lineage_of("run", *places, target.replace("{tmp}", str(tmp_path)))
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)


def test_it_is_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    assert lineage_of("run", *places, None) is None
    for name in ("OPENLINEAGE_NAMESPACE", "OPENLINEAGE_API_KEY", "OPENLINEAGE_CLIENT_LOGGING"):
        monkeypatch.setenv(name, "x")  # they name no receiver
    assert lineage_of("run", *places, None) is None
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "http://127.0.0.1:9")
            assert (setting_of_client(), lineage_of("run", *places, None) is None) == (name, False)
            patch.setenv("OPENLINEAGE_DISABLED", "True")
            assert lineage_of("run", *places, None) is None
    (tmp_path / "openlineage.yml").write_text("transport: {type: noop}")
    assert setting_of_client() == "openlineage.yml"


class Receiver(ThreadingHTTPServer):
    """Takes events, and answers with a status."""

    daemon_threads = True

    def __init__(self, status: int = 201) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.received: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.server.asked.append((self.path, self.headers["Authorization"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextmanager
def receiver(status: int = 201) -> Iterator[Receiver]:
    server = Receiver(status)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def published(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with events and tables; another run finds nothing new, so that no Spark starts."""
    folder = tmp_path_factory.mktemp("lineage")
    write_lines(folder / "in/a.json", small().landed())
    pipeline(folder / "in", folder / "out")
    return folder


def command(
    folder: Path, *options: str, events: str = "in", **variables: str
) -> subprocess.CompletedProcess[str]:
    places = ("--events", str(folder / events), "--out", str(folder / "out"), "--index-lag-seconds", "0")
    given = [str(COMMAND), "run", *places, "--json", *options]
    return subprocess.run(
        given, check=False, capture_output=True, text=True, env=os.environ | variables, timeout=250
    )


def test_a_file_gets_the_events_of_each_run(published: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    for _ in range(2):
        done = command(published, "--lineage", str(file))
        assert (done.returncode, done.stderr) == (0, "")
    failed = command(published, "--lineage", str(file), events="none")
    assert failed.returncode == BAD_INPUT_STATUS
    sent = [checked(json.loads(line)) for line in file.read_text().splitlines()]
    assert [one["eventType"] for one in sent] == ["START", "COMPLETE", "START", "COMPLETE", "START", "FAIL"]
    runs = [one["run"]["runId"] for one in sent]
    assert runs[::2] == runs[1::2]
    assert len(set(runs)) == 3
    assert len({(one["job"]["namespace"], one["job"]["name"]) for one in sent}) == 1
    assert sent[1]["outputs"][0]["facets"]["version"]["datasetVersion"] == json.loads(done.stdout)["run_id"]
    assert failed.stderr.strip().endswith(sent[-1]["run"]["facets"]["errorMessage"]["message"])
    assert sorted(sent[0]["eventTime"] for one in sent) == [sent[0]["eventTime"] for one in sent]


@pytest.mark.parametrize("how", ["url", "config", "option", "option with a path"])
def test_a_receiver_gets_them(how: str, published: Path, tmp_path: Path) -> None:
    with receiver() as server:
        options, variables = list[str](), {"OPENLINEAGE_API_KEY": "a key"}
        if how == "url":
            variables |= {"OPENLINEAGE_URL": server.url, "OPENLINEAGE_NAMESPACE": "nightly"}
        elif how == "config":
            config = {
                "transport": {
                    "type": "http",
                    "url": server.url,
                    "auth": {"type": "api_key", "apiKey": "a key"},
                }
            }
            (tmp_path / "c.yml").write_text(json.dumps(config))
            variables["OPENLINEAGE_CONFIG"] = str(tmp_path / "c.yml")
        else:
            options = ["--lineage", f"{server.url}{'/some/place?x=1' if 'path' in how else ''}"]
        done = command(published, *options, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert [checked(one)["eventType"] for one in server.received] == ["START", "COMPLETE"]
    path = "/some/place?x=1" if "path" in how else "/api/v1/lineage"
    assert server.asked == [(path, "Bearer a key")] * 2
    assert server.received[0]["job"]["namespace"] == ("nightly" if how == "url" else "freshq")


def test_a_receiver_that_fails_is_a_warning(published: Path, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        refused = f"http://user:secret@127.0.0.1:{nobody.getsockname()[1]}"
        with receiver(403) as server:
            address = server.url.replace("//", "//user:secret@")
            closed = command(published, "--lineage", f"{address}?key=secret")
        ended = [command(published, "--lineage", refused), closed]
    ended.append(command(published, OPENLINEAGE_URL="user:secret@host"))
    (tmp_path / "broken.yml").write_text("transport: [")
    ended.append(command(published, OPENLINEAGE_CONFIG=str(tmp_path / "broken.yml")))
    reasons = ("ConnectionError", "HTTPError, status 403", "***@host", "ValueError: OPENLINEAGE_CONFIG")
    for done, reason in zip(ended, reasons, strict=True):
        assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, [])
        assert done.stderr.startswith("freshq-pipeline: lineage: not all events were sent: ")
        assert done.stderr.endswith(ADVICE)
        assert (reason in done.stderr, done.stderr.count("\n"), "secret" in done.stderr) == (True, 1, False)


def test_a_receiver_that_hangs_does_not_keep_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lineage_module, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(lineage_module, "MOST_WAITING", 3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # and never answers
        target = f"http://127.0.0.1:{silent.getsockname()[1]}"
        lineage = Lineage("stream", Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")), target)
        lineage.start()
        for _ in range(9):
            lineage.batch(SUMMARY)  # more than may wait
        lineage.end(SUMMARY)
        lineage.end(SUMMARY)
        sender = lineage._sender
        assert sender is not None
        assert (sender.is_alive(), sender.daemon) == (True, True)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "3 events wait to be sent" in said
    sender.put(None)  # the connections are closed, so that the thread ends
    wait_until(lambda: not sender.is_alive())


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (None, ["START", "RUNNING", "RUNNING", "COMPLETE"]),
        (Unfinished("the catalog is gone"), ["START", "RUNNING", "RUNNING", "COMPLETE"]),
        (BadInput("events: 9 of 9"), ["START", "RUNNING", "RUNNING", "FAIL"]),
        (SystemExit(143), ["START", "RUNNING", "RUNNING", "ABORT"]),
    ],
)
def test_the_events_of_a_stream(
    error: BaseException | None, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HURRY_SECONDS", "PATIENCE_SECONDS"):
        monkeypatch.setattr(lineage_module, name, 60.0)  # the machine may be busy
    places = Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out"))
    (tmp_path / "in").mkdir()
    lineage = lineage_of("stream", *places, str(tmp_path / "lines"))
    end = Ending(places[1], lineage=lineage)
    with pytest.raises(BaseException) if error else nothing():  # noqa: PT011 - any of them
        with end.postponed():
            end.batch(SUMMARY)
            end.batch(SUMMARY)
            fail(error)
        end.finish(as_json=True)
    sent = [checked(json.loads(line)) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [one["eventType"] for one in sent] == kinds


@contextmanager
def nothing() -> Iterator[None]:
    yield


def fail(error: BaseException | None) -> None:
    if error is not None:
        raise error
