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
from local.emulator import PROJECT, architecture, build, runtime_folder

from tests.template.test_template import source as template_source

FUNCTIONS: Final = ("archive", "create_tasks", "http_api", "process_tasks", "sweep", "trigger")
# A handler must not load these: packages of other parts of freshq, and slow ones.
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
        *(
            "freshq.addresses",
            "freshq.cli",
            "freshq.feeds.relay",
            "freshq.feeds.schedules",
            "freshq.simulate",
            "freshq.stores.sql",
            "freshq.matching",
            "freshq.telemetry",
            "opentelemetry",
        ),
        "aws_lambda_powertools.utilities.data_classes",
        *("aws_xray_sdk", "freshq.aws.traces", "wrapt", "asyncio"),  # tracing is off
    }
)
# Nor these: only ProcessTasks runs tasks, and Trigger and Archive use no queue and no store.
WORKS: Final = frozenset({"freshq.worker.worker", "freshq.worker.options"})
NO_QUEUE: Final = frozenset(
    {
        *(
            "freshq.feeds",
            "freshq.queue",
            "freshq.worker",
            "freshq.stores.base",
            "freshq.stores.dynamodb.store",
        ),
        *("freshq.model.answers", "freshq.model.new_task", "freshq.model.options", "freshq.policy.rules"),
    }
)
ALSO_NOT_LOADED: Final = {
    "archive": WORKS | NO_QUEUE | {"freshq.model.task", "freshq.policy.limits"},
    "create_tasks": WORKS | {"freshq.feeds", "freshq.worker.report"},
    "http_api": WORKS | {"freshq.aws.producer", "freshq.worker"},
    "process_tasks": {"freshq.aws.producer", "freshq.feeds"},
    "sweep": WORKS | {"freshq.feeds"},
    "trigger": WORKS | NO_QUEUE,
}
# Modules of freshq that a handler may load; it loads one less.
MOST_MODULES: Final = {
    "archive": 20,
    "create_tasks": 81,
    "http_api": 83,
    "process_tasks": 104,
    "sweep": 85,
    "trigger": 31,
}
PROGRAM: Final = "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import app; print(*sys.modules)"
# Flags of a .pyc: it is tied to its source by hash, unchecked at import (PEP 552).
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
    assert (NOT_LOADED | ALSO_NOT_LOADED[function]).intersection(loaded) == set()
    assert sum(name.partition(".")[0] == "freshq" for name in loaded) <= MOST_MODULES[function]


def layer_of(folder: Path, runtime: str, compiler: str) -> Path:
    """Return a layer as `sam build` builds it for a runtime and this machine's processor."""
    settings = {"LAYER_RUNTIME": runtime, "LAYER_ARCHITECTURE": architecture(), "LAYER_COMPILER": compiler}
    given = [f"{name}={value}" for name, value in settings.items()]
    target = ("build-FreshqLayer", f"ARTIFACTS_DIR={folder}", f"LAYER_PYTHON={sys.executable}")
    subprocess.run(
        [shutil.which("make") or "", "--silent", *target, *given],
        cwd=PROJECT / "layers" / "freshq",
        check=True,
    )
    return folder / "python"


def interpreter(runtime: str) -> str | None:
    """Return an installed interpreter of a runtime, on PATH or of pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    of_pyenv = sorted(pyenv.glob(f"{runtime.removeprefix('python')}.*/bin/{runtime}"))
    for candidate in (shutil.which(runtime), *map(str, of_pyenv)):
        if candidate and subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("runtime", template_source()["Parameters"]["Runtime"]["AllowedValues"])
def test_the_layer_of_every_runtime_is_imported_by_its_interpreter(
    application: Path, tmp_path: Path, runtime: str
) -> None:
    found = interpreter(runtime)
    if found is None:
        pytest.skip(f"there is no {runtime}; the workflow has a job for each")
    layer, packages = layer_of(tmp_path / "layer", runtime, found), tmp_path / "packages"
    packages.mkdir()
    runtime_folder(packages)
    for function in (*FUNCTIONS, "code_deploy_hook"):
        logical_id = "".join(part.title() for part in function.split("_")) + "Function"
        paths = json.dumps([str(path) for path in (application / logical_id, layer, packages)])
        done = subprocess.run(
            [found, "-B", "-I", "-S", "-c", PROGRAM, paths],
            env=ENVIRONMENT | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{function}: {done.stderr}"


def test_a_layer_has_the_same_bytes_whenever_it_is_built(tmp_path: Path) -> None:
    built = [layer_of(tmp_path / name, "native", sys.executable) for name in ("one", "two")]
    contents = [
        {
            path.relative_to(layer): (path.read_bytes(), path.stat().st_mtime)
            for path in layer.rglob("*")
            if path.is_file()
        }
        for layer in built
    ]
    assert contents[0]
    assert contents[0] == contents[1]


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
def dry_run(tmp_path: Path) -> Callable[..., str]:
    """Return the plan of the layer's build with another version of Python on PATH besides this one."""
    for tool in ("sh", "find", "cp", "rm", "mkdir"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    (tmp_path / "python3").symlink_to(sys.executable)
    make = shutil.which("make")
    assert make is not None

    def run(on_path: str, *settings: str) -> str:
        other = tmp_path / on_path
        other.write_text(f"#!/bin/sh\nexit $([ {on_path} = python3.99 ]; echo $?)\n")
        other.chmod(0o755)
        target = ("build-FreshqLayer", "ARTIFACTS_DIR=/layer", "LAYER_RUNTIME=python3.99")
        return subprocess.run(
            [make, "-n", *target, *settings],
            cwd=PROJECT / "layers" / "freshq",
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    return run


def test_the_functions_python_compiles_whatever_python_builds(dry_run: Callable[..., str]) -> None:
    assert re.search(r'"python3\.99" -m compileall', dry_run("python3.99"))


def test_without_the_functions_python_the_build_leaves_out_the_bytecode_and_says_so(
    dry_run: Callable[..., str],
) -> None:
    output = dry_run("python3.98")
    assert "compileall" not in output
    # SAM shows only what a build prints, not its errors.
    assert re.search(r'^echo "Built without bytecode, because no python3\.99 .*"$', output, re.MULTILINE)


def test_without_the_functions_python_the_build_fails_on_request(dry_run: Callable[..., str]) -> None:
    output = dry_run("python3.98", "LAYER_BYTECODE=on")
    (check,) = [line for line in output.splitlines() if line.startswith("test -n")]
    done = subprocess.run(["/bin/sh", "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("No python3.99 found")
    assert "LAYER_BYTECODE=off" in done.stderr


def test_bytecode_can_be_left_out(dry_run: Callable[..., str]) -> None:
    output = dry_run("python3.98", "LAYER_BYTECODE=off")
    assert "compileall" not in output
    assert "cold starts take twice as long" in output


def test_the_layer_says_what_it_was_built_for(dry_run: Callable[..., str]) -> None:
    built_for = dry_run("python3.99", "LAYER_ARCHITECTURE=x86_64")
    assert 'echo "python3.99 x86_64" > "/layer/python/freshq/aws/built_for.txt"' in built_for


def test_a_layer_of_another_runtime_or_processor_is_refused(application: Path, tmp_path: Path) -> None:
    """Import it as a function does."""
    shutil.copytree(application / "FreshqLayer" / "python" / "freshq", tmp_path / "freshq")
    (tmp_path / "freshq" / "aws" / "built_for.txt").write_text("python3.99 arm64\n")
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import freshq.aws",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(
        r"built for python3\.99 arm64, and this function runs on python3\.\d+ \w+: build it with "
        r"LAYER_RUNTIME=python3\.\d+ LAYER_ARCHITECTURE=\w+$",
        done.stderr.strip(),
    )
