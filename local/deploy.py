"""Build the application with SAM and deploy the unchanged template.yaml to the emulator."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import boto3

from local.emulator import REGION, end_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from local.emulator import Connection, Emulator

PROJECT: Final = Path(__file__).resolve().parent.parent
STACK: Final = "freshq-local"
# Starting a function's process blocks the whole emulator for half a second. Without a limit, a burst of rings
# starts so many processes that no worker runs for half a minute. The emulator drops rings above the limit;
# Lambda would deliver them later.
_LOCAL_VALUES: Final[Mapping[str, str | int]] = {"ReservedConcurrency": 3}
_SOURCES: Final = ("template.yaml", "functions", "layers", "events")
_STAMP: Final = "sources.sha256"
_TOOL_SECONDS: Final = 600
_LINES_SHOWN: Final = 30
# Packages of Lambda's Python runtime.
RUNTIME_PACKAGES: Final = (
    *("awslambdaric", "simplejson", "snapshot_restore_py", "snapshot_restore_py.py"),
    *("boto3", "botocore", "s3transfer", "dateutil", "six.py", "urllib3", "jmespath"),
)


class DeployFailed(RuntimeError):
    """A build or a deployment failed; the message ends with the last lines of the tool's output."""


def runtime() -> str:
    """Return Lambda's name for the version of this interpreter."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def architecture() -> str:
    """Return Lambda's name for the processor of this machine."""
    return "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"


def build(folder: Path, project: Path = PROJECT) -> Path:
    """Build the application for this interpreter and this machine.

    Does nothing if the folder already contains a build of the same sources.

    Args:
        folder: Folder of the build.
        project: Folder of the template.

    Returns:
        The built template.

    Raises:
        DeployFailed: The build failed.
    """
    built, stamp, digest = folder / "application", folder / _STAMP, _digest(project)
    template = built / "template.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # the second of two processes that build the same waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        if template.exists() and stamp.exists() and stamp.read_text("utf-8") == digest:
            return template
        stamp.unlink(missing_ok=True)
        _build(built, project)
        stamp.write_text(digest, "utf-8")
    return template


def _build(built: Path, project: Path) -> None:
    settings = {"LAYER_RUNTIME": "native", "LAYER_PYTHON": sys.executable, "AWS_DEFAULT_REGION": REGION}
    paths = ["--template-file", str(project / "template.yaml"), "--build-dir", str(built)]
    _sam(["build", *_environment(project), *paths, *_overrides({})], os.environ | settings)


def deploy(
    emulator: Emulator,
    template: Path,
    parameters: Mapping[str, str | int] | None = None,
    project: Path = PROJECT,
    stack: str = STACK,
) -> dict[str, str]:
    """Deploy a built application to the emulator, or update it there.

    Args:
        emulator: A running emulator.
        template: The built template.
        parameters: Template parameters that replace the local defaults.
        project: Folder of samconfig.toml.
        stack: Name of the stack.

    Returns:
        The outputs of the stack.

    Raises:
        DeployFailed: The deployment failed.
    """
    arguments = [*_environment(project), "--template-file", str(template), "--stack-name", stack]
    _sam(["deploy", *arguments, *_overrides(parameters or {})], emulator.environment)
    return complete(stack, emulator.connection)


def complete(stack: str, connection: Connection) -> dict[str, str]:
    """Apply settings of a new stack that the emulator's CloudFormation ignores; return its outputs."""
    client = boto3.client("cloudformation", **connection)
    (made,) = client.describe_stacks(StackName=stack)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in made["Outputs"]}
    values = {parameter["ParameterKey"]: parameter["ParameterValue"] for parameter in made["Parameters"]}
    if not values.get("AttachTable"):  # the application owns an attached table
        boto3.client("dynamodb", **connection).update_time_to_live(
            TableName=outputs["QueueTableName"],
            TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"},
        )
    if reserved_concurrency := int(values["ReservedConcurrency"]):
        boto3.client("lambda", **connection).put_function_concurrency(
            FunctionName=outputs["ProcessTasksFunctionName"],
            ReservedConcurrentExecutions=reserved_concurrency,
        )
    return outputs


def demonstration(capacity: int, task_seconds: float) -> dict[str, str]:
    """Return the template parameter that sets the capacity and the speed of the demonstration downstream."""
    variables = {"FRESHQ_DEMO_CAPACITY": str(capacity), "FRESHQ_DEMO_TASK_SECONDS": str(task_seconds)}
    return {"RunnerEnvironment": json.dumps(variables)}


def template_values(parameters: Mapping[str, str | int]) -> dict[str, str]:
    """Return template parameters, completed by the local defaults."""
    here = {"Stage": "local", "Runtime": runtime(), "Architecture": architecture()}
    return {name: str(value) for name, value in {**here, **_LOCAL_VALUES, **parameters}.items()}


def _digest(project: Path) -> str:
    """Return a digest of everything that goes into a build."""
    digest = hashlib.sha256(f"{sys.version} {architecture()}".encode())
    for source in _SOURCES:
        for file in sorted([project / source, *(project / source).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"\0{file.relative_to(project)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _environment(project: Path) -> list[str]:
    return ["--config-file", str(project / "samconfig.toml"), "--config-env", "local"]


def _overrides(parameters: Mapping[str, str | int]) -> list[str]:
    values = template_values(parameters)
    return ["--parameter-overrides", *(f"{name}={json.dumps(value)}" for name, value in values.items())]


def _sam(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the SAM CLI; raise a DeployFailed with its last lines if it fails."""
    with tempfile.TemporaryDirectory(prefix="freshq-sam-") as temporary:
        settings = {"SAM_CLI_TELEMETRY": "0", "SAM_CLI_POLL_DELAY": "0.2", "TMPDIR": temporary}
        process = subprocess.Popen(
            [sys.executable, "-m", "samcli", *arguments],
            env={**environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_TOOL_SECONDS)
        except subprocess.TimeoutExpired:
            msg = f"sam {arguments[0]} took more than {_TOOL_SECONDS} s"
            raise DeployFailed(msg) from None
        finally:
            end_group(process)
    if process.returncode != 0:
        lines = output.decode(errors="replace").splitlines()[-_LINES_SHOWN:]
        raise DeployFailed("\n".join([f"sam {arguments[0]} failed:", *lines]))


def runtime_folder(folder: Path) -> Path:
    """Return a folder with only the runtime's packages of this environment."""
    installed = Path(sysconfig.get_paths()["purelib"])
    for pattern in (*RUNTIME_PACKAGES, "runtime_client*.so"):
        for package in installed.glob(pattern):
            (folder / package.name).symlink_to(package)
    return folder
