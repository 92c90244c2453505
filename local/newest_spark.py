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
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ("tests/pipeline/test_facts.py",)
_VERSION: Final = "import pyspark; print('Spark', pyspark.__version__, flush=True)"


def allowed() -> str:
    """Return the requirement for Spark in pyproject.toml."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    (found,) = (
        one for one in project["optional-dependencies"]["pipeline"] if one.split(">")[0].strip() == "pyspark"
    )
    return str(found)


def main() -> None:
    """Install that Spark into a temporary folder, run the tests with it, and exit with their status."""
    with tempfile.TemporaryDirectory(prefix="freshq-newest-spark-") as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*install, f"--target={folder}", allowed()], check=False)  # noqa: S603 - this pip
        if done.returncode != 0:
            sys.exit("newest-spark: pip could not install Spark")
        before = os.environ.get("PYTHONPATH")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [folder, before]))}
        environment.pop("SPARK_HOME", None)
        subprocess.run([sys.executable, "-c", _VERSION], env=environment, check=True)  # noqa: S603 - this one
        tests = [sys.executable, "-m", "pytest", "--quiet", *TESTS]
        sys.exit(subprocess.run(tests, cwd=PROJECT, env=environment, check=False).returncode)  # noqa: S603 - as above


if __name__ == "__main__":
    main()
