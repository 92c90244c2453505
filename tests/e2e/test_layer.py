"""The built layer: together with Lambda's runtime, it has all packages of the functions."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

# Packages of AWS's Python runtimes.
RUNTIME_PACKAGES = ("boto3", "botocore", "s3transfer", "dateutil", "six.py", "urllib3")


@pytest.mark.parametrize(
    "function",
    ["create_tasks", "trigger", "process_tasks", "sweep", "archive", "http_api", "code_deploy_hook"],
)
def test_a_function_finds_everything_it_imports(template: Path, tmp_path: Path, function: str) -> None:
    installed = Path(sysconfig.get_paths()["purelib"])
    for package in RUNTIME_PACKAGES:
        (tmp_path / package).symlink_to(installed / package)
    application = template.parent
    logical_id = "".join(part.title() for part in function.split("_")) + "Function"
    paths = [application / "FreshqLayer" / "python", application / logical_id, tmp_path]
    program = f"import sys; sys.path[:0] = {[str(path) for path in paths]}; import app; print(app.handler)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        env={"AWS_DEFAULT_REGION": "us-east-1", "POWERTOOLS_TRACE_DISABLED": "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "handler" in done.stdout
