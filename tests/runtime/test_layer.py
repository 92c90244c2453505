"""The built layer: its bytecode, and what each handler loads."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from benchmarks.coldstart import ENVIRONMENT
from local.deploy import PROJECT, build, runtime_folder

FUNCTIONS: Final = ("archive", "create_tasks", "process_tasks", "sweep", "trigger")
# Of these a handler loads none: packages of other parts of freshq, and what only takes time.
NOT_LOADED: Final = frozenset(
    {
        *(
            "typer",
            "rich",
            "prompt_toolkit",
            "sqlalchemy",
            "psycopg",
            "pymysql",
            "pydantic_settings",
            "dotenv",
        ),
        *("cronsim", "altair", "pandas", "pyspark", "boto3", "s3transfer"),
        *("freshq.cli", "freshq.feeds", "freshq.simulate", "freshq.stores.sql", "freshq.matching"),
        "aws_lambda_powertools.utilities.data_classes",
        *("aws_xray_sdk", "wrapt", "asyncio"),  # tracing is off
    }
)
# Modules of freshq that a handler may load; it loads one or two less. Trigger and Archive need no queue.
MOST_MODULES: Final = {"archive": 26, "create_tasks": 107, "process_tasks": 137, "sweep": 114, "trigger": 39}
PROGRAM: Final = "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import app; print(*sys.modules)"
# In the flags of a .pyc: it belongs to a source by its hash, and nobody checks that (PEP 552).
UNCHECKED_HASH: Final = 0b01


@pytest.fixture(scope="module")
def application() -> Path:
    """Return the application as `sam build` builds it for this interpreter."""
    return build(PROJECT / "build" / "local").parent


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_start_loads_what_the_function_uses_and_little_else(
    application: Path, tmp_path: Path, function: str
) -> None:
    logical_id = "".join(part.title() for part in function.split("_")) + "Function"
    layer = application / "FreshqLayer" / "python"
    paths = [application / logical_id, layer, runtime_folder(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-B", "-I", "-S", "-c", PROGRAM, json.dumps([str(path) for path in paths])],
        env=ENVIRONMENT | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert NOT_LOADED.isdisjoint(loaded)
    assert sum(name.partition(".")[0] == "freshq" for name in loaded) <= MOST_MODULES[function]


def test_every_module_has_bytecode_that_no_timestamp_makes_stale(application: Path) -> None:
    layer = application / "FreshqLayer" / "python"
    tag = sys.implementation.cache_tag
    sources = list(layer.rglob("*.py"))
    assert sources
    for source in sources:
        bytecode = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        assert bytecode.exists(), source
        assert bytecode.read_bytes()[4:8] == UNCHECKED_HASH.to_bytes(4, "little"), source


def test_tracebacks_name_the_files_as_they_are_on_lambda(application: Path) -> None:
    bytecode = application / "FreshqLayer" / "python" / "freshq" / "__pycache__"
    (errors,) = bytecode.glob("errors.*.pyc")
    assert b"/opt/python/freshq/errors.py" in errors.read_bytes()


@pytest.fixture
def dry_run(tmp_path: Path) -> Callable[[str], str]:
    """Return what the layer's build would do with a Python of some version on PATH besides this one."""
    for tool in ("sh", "find", "cp", "rm", "mkdir"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    (tmp_path / "python3").symlink_to(sys.executable)
    make = shutil.which("make")
    assert make is not None

    def run(on_path: str) -> str:
        other = tmp_path / on_path
        other.write_text(f"#!/bin/sh\nexit $([ {on_path} = python3.99 ]; echo $?)\n")
        other.chmod(0o755)
        return subprocess.run(
            [make, "-n", "build-FreshqLayer", "ARTIFACTS_DIR=/layer", "LAYER_RUNTIME=python3.99"],
            cwd=PROJECT / "layers" / "freshq",
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    return run


def test_the_functions_python_compiles_whatever_python_builds(dry_run: Callable[[str], str]) -> None:
    assert re.search(r'"python3\.99" -m compileall', dry_run("python3.99"))


def test_without_the_functions_python_the_build_says_that_starts_are_slow(
    dry_run: Callable[[str], str],
) -> None:
    output = dry_run("python3.98")
    assert "compileall" not in output
    assert "no python3.99 found" in output
