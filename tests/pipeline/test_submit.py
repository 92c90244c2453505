"""A run on EMR Serverless: it starts once, and `submit` exits with its status."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber
from moto import mock_aws
from typer.testing import CliRunner

from freshq_pipeline.cli import app
from freshq_pipeline.cluster.commands import Command
from freshq_pipeline.cluster.emr import Ended, deployed, result_of, start, upload
from freshq_pipeline.cluster.verdict import VERDICT, with_verdict
from freshq_pipeline.errors import INTERRUPTED_STATUS, BadInput, PipelineError
from tests.conftest import REGION
from tests.pipeline.test_pull import stacks

OUTPUTS = {
    "ApplicationId": "00app",
    "BucketName": "own",
    "JobRoleArn": "arn:aws:iam::123456789012:role/job",
    "EventsUri": "s3://landed/events",
    "OutUri": "s3://own/out",
    "SparkParameters": "--conf spark.archives=s3://own/job/environment.tar.gz#environment",
    "TimeoutMinutes": "60",
    "LogGroupName": "/freshq/p/pipeline",
    "Catalog": "glue.freshq",
    "RunOptions": "--keep-runs 20 --max-reject-ratio 0.1 --keep-silver-days 90",
}
# The default options of a run on the stack's own output.
OF_STACK = ("--catalog", "glue.freshq", "--keep-runs", "20", "--max-reject-ratio", "0.1")
RETENTION = ("--keep-silver-days", "90")
PLACES = ("--events", "s3://landed/events", "--out", "s3://own/out", "--json")
BACKFILL = ["--since", "2026-11-01", "--until", "2026-11-03"]
VIOLATIONS = "freshq-pipeline: ledger violations: 1 new, 2 in all; see the table violations"
SUMMARY = {"queues": [], "run_id": "r", "tasks": 3, "ledger_violations": 0, "files_damaged": 0, "tables": {}}


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3")
        location: Any = {"LocationConstraint": REGION}
        client.create_bucket(Bucket="own", CreateBucketConfiguration=location)
        yield client


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(tmp_path / "package", "1")


def write_package(folder: Path, content: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("main.py", "environment.tar.gz"):
        (folder / name).write_text(content)
    digests = {"main.py": f"main {content}", "environment.tar.gz": f"environment {content}"}
    (folder / "package.json").write_text(json.dumps({"sha256": digests}))
    return folder


class Application:
    """A fake EMR Serverless with a run that goes through given states.

    Attributes:
        client: A boto3 client of it.
        started: Arguments of StartJobRun.
    """

    def __init__(self, *states: str, details: str = "") -> None:
        self.client = boto3.client("emr-serverless")
        self.started: dict[str, Any] = {}
        self._states = list(states)
        self._details = details
        self.client.start_job_run = self._start
        self.client.get_job_run = self._describe

    def _start(self, **given: Any) -> dict[str, str]:
        self.started = given
        return {"jobRunId": "00run"}

    def _describe(self, **_given: Any) -> dict[str, Any]:
        state = self._states.pop(0)
        if state == "CTRL-C":
            raise KeyboardInterrupt
        run = {"jobRunId": "00run", "state": state, "stateDetails": self._details}
        return {"jobRun": run | {"jobDriver": self.started.get("jobDriver", {})}}

    @property
    def verdict_key(self) -> str:
        """The file to which the run writes its verdict."""
        return f"verdicts/{self.started['clientToken']}.json"


@pytest.fixture
def command(
    s3: Any, package: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Application, list[str]], Any]:
    """Return a function that runs `submit` against an application."""

    def invoke(application: Application, options: list[str]) -> Any:
        clients = {"s3": s3, "emr-serverless": application.client, "cloudformation": stacks(**OUTPUTS)}
        monkeypatch.setattr("boto3.client", lambda service: clients[service])
        monkeypatch.setattr("freshq_pipeline.cluster.emr.POLL_SECONDS", 0)
        return CliRunner().invoke(app, ["submit", "--stack", "s", "--package", str(package), *options])

    return invoke


def put(client: Any, key: str, value: dict[str, Any]) -> None:
    client.put_object(Bucket="own", Key=key, Body=json.dumps(value).encode())


def test_a_package_is_uploaded_once(s3: Any, package: Path) -> None:
    progress: list[tuple[int, int]] = []
    files = ["main.py", "environment.tar.gz"]
    assert upload("own", package, s3, lambda done, of: progress.append((done, of))) == files
    assert progress[-1] == (2, 2)
    assert upload("own", package, s3) == []
    write_package(package, "2")
    assert upload("own", package, s3) == files
    assert s3.get_object(Bucket="own", Key="job/main.py")["Body"].read() == b"2"


def test_a_missing_package_is_bad_input(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="make pipeline-package"):
        upload("own", tmp_path, s3)


def test_retries_of_a_call_start_one_run() -> None:
    client = boto3.client("emr-serverless")
    with Stubber(client) as stubber:
        expected = {
            "applicationId": "00app",
            "clientToken": ANY,
            "executionRoleArn": OUTPUTS["JobRoleArn"],
            "name": "submitted",
            "executionTimeoutMinutes": 60,
            "jobDriver": ANY,
        }
        stubber.add_response(
            "start_job_run", {"applicationId": "00app", "jobRunId": "00run", "arn": "a" * 60}, expected
        )
        tokens: list[str] = []
        client.meta.events.register(
            "before-parameter-build.emr-serverless.StartJobRun",
            lambda params, **_: tokens.append(params["clientToken"]),
        )
        stack = deployed("s", stacks(**OUTPUTS))
        assert start(stack, ["run"], ["spark.driver.memory=8g"], client) == "00run"
    assert len(tokens[0]) == 32
    with pytest.raises(BadInput, match="spark-conf"):
        start(stack, ["run"], ["spark.x=1 --conf y=2"], client)


def test_another_stack_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"no output 'BucketName'.*pipeline/template.yaml"):
        deployed("s", stacks(ApplicationId="00app"))


def test_a_run_is_followed_to_its_summary(command: Callable[..., Any], s3: Any) -> None:
    application = Application("SUBMITTED", "RUNNING", "SUCCESS")
    put(s3, "out/summary.json", SUMMARY)
    ended = command(application, ["--as-of", "1767225600000", "--json"])
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout) == SUMMARY
    driver = application.started["jobDriver"]["sparkSubmit"]
    assert driver["entryPoint"] == "s3://own/job/main.py"
    assert driver["entryPointArguments"] == [
        "run",
        *PLACES,
        *OF_STACK,
        *RETENTION,
        "--as-of",
        "1767225600000",
    ]
    assert driver["sparkSubmitParameters"].startswith(OUTPUTS["SparkParameters"])
    assert f"FRESHQ_VERDICT=s3://own/{application.verdict_key}" in driver["sparkSubmitParameters"]
    assert "s3://own/logs/applications/00app/jobs/00run/" in ended.stderr


class Ending(Application):
    """A run that fails after it wrote its verdict."""

    def __init__(self, s3: Any, verdict: dict[str, Any]) -> None:
        super().__init__("FAILED", details="Job failed, please check complete logs")
        self._s3, self._verdict = s3, verdict

    def _start(self, **given: Any) -> dict[str, str]:
        run = super()._start(**given)
        put(self._s3, self.verdict_key, self._verdict)
        return run


@pytest.mark.parametrize(
    ("status", "message", "printed"),
    [
        (2, "freshq-pipeline: events: is empty", "freshq-pipeline: events: is empty\n"),
        (3, "freshq-pipeline: Spark failed", "the run 00run ended as FAILED: Spark failed\n"),
        (4, "freshq-pipeline: 2 new", "freshq-pipeline: 2 new\n"),
        (6, "freshq-pipeline: not registered", "freshq-pipeline: not registered\n"),
        (7, "freshq-pipeline: no report", f"{VIOLATIONS}\nfreshq-pipeline: no report\n"),
    ],
)
def test_the_exit_status_is_that_of_the_run(
    status: int, message: str, printed: str, command: Callable[..., Any], s3: Any
) -> None:
    # The summary may be that of an earlier run, if this one found nothing to do.
    put(s3, "out/summary.json", SUMMARY | {"ledger_violations": 2, "new_ledger_violations": 1})
    ended = command(Ending(s3, {"status": status, "message": message}), [])
    assert ended.exit_code == status, ended.stderr
    assert printed in ended.stderr


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_a_failed_run_without_a_verdict(state: str, command: Callable[..., Any]) -> None:
    ended = command(Application(state, details="out of memory"), [])
    assert ended.exit_code == 3
    assert f"ended as {state}: out of memory" in ended.stderr


def test_a_run_without_a_summary_is_a_failure(s3: Any) -> None:
    arguments = ["run", "--events", "s3://landed", "--out", "s3://own/other/"]
    run = {
        "jobRunId": "00run",
        "state": "SUCCESS",
        "jobDriver": {"sparkSubmit": {"entryPointArguments": arguments, "sparkSubmitParameters": ""}},
    }
    with pytest.raises(PipelineError, match=r"s3://own/other has no summary\.json"):
        result_of(run, s3)
    put(s3, "other/summary.json", SUMMARY)
    assert result_of(run, s3) == Ended(Command.RUN, SUMMARY)


def test_ctrl_c_leaves_the_run_going(command: Callable[..., Any]) -> None:
    ended = command(Application("RUNNING", "CTRL-C"), [])
    assert ended.exit_code == INTERRUPTED_STATUS
    assert "submit --stack s --follow 00run" in ended.stderr
    assert "cancel-job-run --application-id 00app --job-run-id 00run" in ended.stderr


def arguments(application: Application) -> list[str]:
    """Return the arguments of the command that was started."""
    given: list[str] = application.started["jobDriver"]["sparkSubmit"]["entryPointArguments"]
    return given


@pytest.mark.parametrize(
    ("options", "started"),
    [
        (
            ["--events", "s3://other/x/"],
            ["run", "--events", "s3://other/x", *PLACES[2:], *OF_STACK, *RETENTION],
        ),
        (BACKFILL, ["run", *PLACES, *OF_STACK, *RETENTION, *BACKFILL]),
        # A stream has its checkpoint beside the output. The option is the default, but not that of the stack.
        (
            ["stream", "--keep-runs", "5"],
            [
                *("stream", *PLACES, "--checkpoint", "s3://own/out/checkpoint", *OF_STACK[:2], *OF_STACK[4:]),
                *(*RETENTION, "--keep-runs", "5"),
            ],
        ),
        # Catalog and retention of the stack are for its own output.
        (["--out", "s3://other/out"], ["run", *PLACES[:2], "--out", "s3://other/out", "--json"]),
    ],
)
def test_what_is_started(options: list[str], started: list[str], command: Callable[..., Any]) -> None:
    application = Application()
    ended = command(application, [*options, "--no-wait"])
    assert ended.exit_code == 0, ended.stderr
    assert arguments(application) == started


@pytest.mark.parametrize("status", [0, 5])
def test_a_replay_shows_its_result_and_has_its_status(
    status: int, command: Callable[..., Any], s3: Any
) -> None:
    result = {"queues": [{"check": {"within": status == 0}}]}
    put(s3, "out/replay.json", result)
    application = Ending(s3, {"status": 5, "message": "far off"}) if status else Application("SUCCESS")
    chosen = ["--policies", "lifo", "--queue", "mail", "--since", "2026-11-01"]
    ended = command(application, ["replay", *chosen, "--json"])
    assert ended.exit_code == status, ended.stderr
    assert ended.stderr.endswith("freshq-pipeline: far off\n") == bool(status)
    assert json.loads(ended.stdout) == result
    first, *_ = started = arguments(application)
    assert (first, set(started)) == ("replay", {"replay", *PLACES, *chosen})


def test_what_the_replay_of_another_version_left_is_not_shown(command: Callable[..., Any], s3: Any) -> None:
    put(s3, "out/replay.json", {"queues": []})
    ended = command(Application("SUCCESS"), ["replay"])
    assert ended.exit_code == 2, ended.stderr
    assert "the result of the run is no result of this version's replay" in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--events", "/here"], "events: must begin with s3://"),
        (["--as-of", "-1"], "as-of: must be milliseconds"),
        (["--policies", "fifo"], "policies: run has no such option; it has --accept-damaged, --as-of"),
        (["stream", "--since", "2026-11-01"], "since: stream has no such option"),
        (["replay", "--as-of", "1767225600000"], "as-of: replay has no such option; it has --capacity"),
        (["replay", "--policies", "newest"], "policies: "),
    ],
)
def test_bad_options_start_nothing(options: list[str], message: str, command: Callable[..., Any]) -> None:
    application = Application()
    ended = command(application, options)
    assert (ended.exit_code, application.started) == (2, {})
    assert message in ended.stderr


def test_an_error_of_aws_is_one_line(command: Callable[..., Any]) -> None:
    application = Application()
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "StartJobRun")

    def refuse(**_given: Any) -> None:
        raise denied

    application.client.start_job_run = refuse
    ended = command(application, [])
    assert ended.exit_code == 3
    assert "not you" in ended.stderr


def test_a_verdict_is_the_exit_status_and_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        sys.stderr.write("a warning\nfreshq-pipeline: events: is empty\n")
        sys.exit(2)

    written = tmp_path / "verdicts/a.json"
    monkeypatch.setenv(VERDICT, str(written))
    assert with_verdict(fail) == 2
    assert json.loads(written.read_text()) == {
        "status": 2,
        "message": "freshq-pipeline: events: is empty",
    }
    assert capsys.readouterr().err.endswith("is empty\n")
    assert with_verdict(lambda: None) == 0
    assert json.loads(written.read_text()) == {"status": 0, "message": ""}


def test_the_verdict_of_a_defect_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        msg = "a defect"
        raise RuntimeError(msg)

    monkeypatch.setenv(VERDICT, f"{tmp_path}/a.json")
    with pytest.raises(RuntimeError):
        with_verdict(crash)
    assert json.loads((tmp_path / "a.json").read_text()) == {"status": 3, "message": "RuntimeError: a defect"}


def test_a_verdict_that_cannot_be_written_does_not_change_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VERDICT, f"{tmp_path}/file/a.json")
    assert with_verdict(lambda: sys.exit(4)) == 4
    assert "cannot write the verdict to" in errors.getvalue()
