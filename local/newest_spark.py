"""Run the tests of the pipeline's tables on the newest Spark that pyproject.toml allows.

The lock file pins the Spark of EMR's long-term support. This shows early what a newer Spark breaks:
`python -m local.newest_spark`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROJECT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ("tests/pipeline/test_facts.py",)
_VERSION: Final = "import pyspark; print('Spark', pyspark.__version__, flush=True)"
# What every job says when an error inside Spark, not in the job, has stopped the session.
_STOPPED_BY_ITSELF: Final = "SparkContext was shut down"


def allowed() -> str:
    """Return the requirement for Spark in pyproject.toml."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    (found,) = (
        one for one in project["optional-dependencies"]["pipeline"] if one.split(">")[0].strip() == "pyspark"
    )
    return str(found)


def run_tests(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the tests, once more if Spark stopped by itself, and return their exit status.

    A new release of Spark now and then stops its own session, in one run of many. That is no finding about
    the tables; twice in a row is one.
    """
    status, output = _run(command, environment)
    if status != 0 and _STOPPED_BY_ITSELF in output:
        print("newest-spark: Spark stopped by itself; running the tests once more", flush=True)
        status, _ = _run(command, environment)
    return status


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, show its output as it comes, and return its exit status and that output."""
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        lines = []
        for line in running.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return running.returncode, "".join(lines)


def main() -> None:
    """Install that Spark into a temporary folder, run the tests with it, and exit with their status."""
    with tempfile.TemporaryDirectory(prefix="freshq-newest-spark-") as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*install, f"--target={folder}", allowed()], check=False)
        if done.returncode != 0:
            sys.exit("newest-spark: pip could not install Spark")
        before = os.environ.get("PYTHONPATH")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [folder, before]))}
        environment.pop("SPARK_HOME", None)
        subprocess.run([sys.executable, "-c", _VERSION], env=environment, check=True)
        tests = [sys.executable, "-m", "pytest", "--quiet", *TESTS]
        sys.exit(run_tests(tests, environment))


if __name__ == "__main__":
    main()
