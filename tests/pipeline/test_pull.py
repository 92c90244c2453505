"""`pull` copies landed events once and completely."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto import mock_aws
from typer.testing import CliRunner

from freshq_pipeline.cli import app
from freshq_pipeline.cluster.pull import bucket_of, pull
from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.storage.folder import Folder
from tests.conftest import REGION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


def test_a_missing_stack_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = no_stacks()
    monkeypatch.setattr("freshq_pipeline.cluster.pull.boto3.client", lambda _service: client)
    result = CliRunner().invoke(app, ["pull", "--stack", "s", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("freshq-pipeline: stack: 's' does not exist")
