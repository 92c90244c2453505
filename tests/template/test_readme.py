"""The instructions in the README and the guides: run if possible, else compared with the project."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import boto3
import pytest
from samcli.cli.types import CfnParameterOverridesType
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue, Reject, Task
from freshq.aws.producer import parse_load_request, produce
from freshq.worker.runner import load_runner
from tests.support.functions import EVENTS, PROJECT
from tests.support.programs import python
from tests.template.test_template import source

README = (PROJECT / "README.md").read_text("utf-8")
DEPLOY = (PROJECT / "docs" / "deploy.md").read_text("utf-8")
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text("utf-8")
MAKEFILE = (PROJECT / "Makefile").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_library_example_runs(tmp_path: Path) -> None:
    example = blocks("python")[0]
    done = python("-c", example, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "'price': 42, 'symbol': 'ABC'" in done.stdout
    assert "success=3, failure=1" in done.stdout


def overrides_of_the_runner_example() -> dict[str, str]:
    """Return the parameters as SAM gets them from a shell."""
    (shown,) = re.findall(r"--parameter-overrides (Stage=dev Runner=.*?)\n   ```", DEPLOY, re.DOTALL)
    words = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' {shown}"], capture_output=True, text=True, check=True
    )
    overrides: dict[str, str] = CfnParameterOverridesType().convert(
        tuple(words.stdout.split("\0")[:-1]), None, None
    )
    return overrides


def test_the_runner_example_names_parameters_as_the_template_allows_them() -> None:
    overrides = overrides_of_the_runner_example()
    parameters = source()["Parameters"]
    assert overrides.keys() <= parameters.keys()
    assert re.fullmatch(parameters["Runner"]["AllowedPattern"], overrides["Runner"])
    assert overrides["RunnerPolicyArns"].startswith("arn:aws:iam::")
    assert json.loads(overrides["RunnerEnvironment"]) == {"BUCKET": "my-bucket"}
    (policy,) = re.findall(r"--policy-document '(.*?)'", DEPLOY, re.DOTALL)
    actions = {statement["Action"] for statement in json.loads(policy)["Statement"]}
    # Without the latter S3 answers AccessDenied instead of NoSuchKey.
    assert actions == {"s3:GetObject", "s3:ListBucket"}


def test_the_runner_example_runs_as_it_is_deployed(
    account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (example,) = re.findall(r"^ +```python\n(.*?)^ +```", DEPLOY, re.DOTALL | re.MULTILINE)
    (module,) = re.findall(r"`functions/process_tasks/(\w+)\.py`", DEPLOY)
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(example))
    overrides = overrides_of_the_runner_example()
    variables = json.loads(overrides["RunnerEnvironment"])
    location: Any = {"LocationConstraint": boto3.session.Session().region_name}
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=variables["BUCKET"], CreateBucketConfiguration=location)
    s3.put_object(Bucket=variables["BUCKET"], Key="quotes/ABC.json", Body=b"four")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(tmp_path)
    run = load_runner(overrides["Runner"])
    del account_client  # the cloud of the bucket
    assert run(make_task("quotes/ABC.json")) == {"bytes": 4}
    with pytest.raises(Reject):
        run(make_task("quotes/none"))


def make_task(key: str) -> Task:
    """Return a task as a runner gets it."""
    queue = Queue.memory()
    queue.put({"key": key})
    (claim,) = queue.claim()
    return claim.task


def test_every_event_file_begins_with_the_folder_of_its_function() -> None:
    for file in EVENTS.glob("*.json"):
        assert (PROJECT / "functions" / file.stem.split("-")[0]).is_dir(), file.name


def test_the_shown_event_is_one_of_its_function() -> None:
    ((function, event),) = re.findall(r"sam local invoke (\w+) -e events/([\w-]+)\.json", DEPLOY)
    assert (EVENTS / f"{event}.json").exists()
    folder = source()["Resources"][function]["Properties"]["CodeUri"]
    assert folder == f"functions/{event.split('-')[0]}/"


def test_the_third_use_is_shown_with_what_it_needs() -> None:
    ((function, event),) = re.findall(r"^sam local invoke (\w+) --event (events/\S+)$", README, re.MULTILINE)
    assert parse_load_request(json.loads((PROJECT / event).read_text("utf-8"))).tasks
    assert source()["Resources"][function]["Properties"]["CodeUri"] == "functions/create_tasks/"
    config = tomllib.loads((PROJECT / "samconfig.toml").read_text("utf-8"))
    given = config["default"]["local_invoke"]["parameters"]
    assert given["parameter_overrides"] == "Stage=dev", "the stage has no default"
    variables = json.loads((PROJECT / given["env_vars"]).read_text("utf-8"))["Parameters"]
    assert "FRESHQ_TABLE" in variables


def test_the_schedule_puts_a_task_once_however_often_it_is_delivered() -> None:
    (target,) = re.findall(r"--target '(\{.*?\})'$", DEPLOY, re.DOTALL | re.MULTILINE)
    event = json.loads(
        json.loads(target)["Input"].replace("<aws.scheduler.scheduled-time>", "2026-01-01T06:00:00Z")
    )
    queue = Queue.memory()
    reports = [
        produce(queue, parse_load_request(event), request_id, lambda: 60.0) for request_id in ("one", "two")
    ]
    assert [(report.created, report.duplicates) for report in reports] == [(1, 0), (0, 1)]
    for document in re.findall(r"-policy-document[ =]'(\{.*?\})'$", DEPLOY, re.DOTALL | re.MULTILINE):
        json.loads(document)


def test_the_console_events_are_accepted() -> None:
    events = re.findall(r"^\| `(\{.*?\})` \|", README, re.MULTILINE)
    assert len(events) == 3
    for event in events:
        parse_load_request(json.loads(event))


def test_the_make_targets_exist_and_are_listed() -> None:
    make = shutil.which("make")
    assert make is not None
    help_text = subprocess.run([make], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for target in set(re.findall(r"(?:^ *|`)make ([a-z-]+)", README + CONTRIBUTING, re.MULTILINE)):
        assert f"make {target} " in help_text, target


def test_every_room_has_fast_tests() -> None:
    fast = dict(re.findall(r"^FAST_(\w+) := (.*)$", MAKEFILE, re.MULTILINE))
    listed = CONTRIBUTING.split("| ROOM |")[1].split("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", listed, re.MULTILINE) == list(fast)
    for room, arguments in fast.items():
        for path in arguments.split(" -k ")[0].split():
            assert (PROJECT / path).exists(), f"{room}: {path}"


def test_the_parameters_exist() -> None:
    parameters = source()["Parameters"]
    for name in re.findall(
        r"(\w+)=\S+", " ".join(re.findall(r"--parameter-overrides (.*)", README + DEPLOY))
    ):
        assert name in parameters


def test_the_conservation_law_is_the_same_everywhere() -> None:
    files = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "tests").rglob("*.py")]
    laws = [
        law
        for file in [*files, *(PROJECT / "layers").rglob("*.py")]
        for law in re.findall(r"put = (\w+(?: \+ \w+)+)", file.read_text("utf-8"))
    ]
    assert len(laws) >= 4
    assert set(laws) == {"success + failure + cancelled + shed + pending + delayed + taken"}


def test_the_links_work() -> None:
    documents = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    for document in documents:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_runbook_has_a_page_for_every_alarm() -> None:
    runbook = (PROJECT / "docs" / "operations.md").read_text("utf-8")
    alarms = [
        name
        for name, resource in source()["Resources"].items()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    ]
    assert len(alarms) >= 9
    for name in alarms:
        assert f"| {name} |" in runbook, name


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["stats", "--help"]])
def test_the_command_is_installed(arguments: list[str]) -> None:
    command = Path(sys.executable).parent / "freshq"
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
