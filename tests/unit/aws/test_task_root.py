"""A function's file that is named like a module of Python: the build and the first call say so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from freshq.aws.task_root import check_names
from freshq.worker.runner import load_runner
from tests.support.functions import PROJECT

RUNNER = "def run(task): ..."


@pytest.mark.parametrize("name", ["queue", "json", "typing", "pathlib", "platform", "secrets", "logging"])
def test_the_first_call_names_the_file(tmp_path: Path, name: str) -> None:
    """Import a handler like Lambda: the function's files first, then the layer."""
    (tmp_path / f"{name}.py").write_text(RUNNER)
    shutil.copy(PROJECT / "functions" / "process_tasks" / "app.py", tmp_path)
    loaded = "import json, logging, typing, functools"  # by the runtime
    program = f"{loaded}; import sys; sys.path.insert(0, {str(tmp_path)!r}); import app"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LAMBDA_TASK_ROOT": str(tmp_path), "AWS_DEFAULT_REGION": "eu-west-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / name}.py: has the name of Python's own module {name}")
    assert "Runner" in last


def test_a_package_hides_a_module_too_and_a_folder_of_files_does_not(tmp_path: Path) -> None:
    (tmp_path / "calendar").mkdir()
    (tmp_path / "json.txt").touch()
    (tmp_path / "quotes.py").touch()
    (tmp_path / "app.py").touch()
    check_names(str(tmp_path), str(tmp_path / "missing"))
    (tmp_path / "calendar" / "__init__.py").touch()
    with pytest.raises(ImportError, match="calendar: has the name of Python's own module calendar"):
        check_names(str(tmp_path))


def test_our_own_functions_hide_nothing() -> None:
    check_names(*map(str, (PROJECT / "functions").iterdir()))


def test_the_build_names_the_file(tmp_path: Path) -> None:
    """Run it like `sam build`: in a copy of the layer's folder, with the original Makefile."""
    make = shutil.which("make")
    assert make is not None
    shutil.copytree(PROJECT / "functions", tmp_path / "functions")
    (tmp_path / "functions" / "process_tasks" / "queue.py").write_text(RUNNER)
    (tmp_path / "layers").mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    layer = shutil.copytree(PROJECT / "layers" / "freshq", tmp_path / "layers" / "freshq", ignore=ignored)
    copied = shutil.copytree(layer, tmp_path / "scratch")
    done = subprocess.run(
        [
            *(make, "--makefile", str(layer / "Makefile"), "build-FreshqLayer"),
            *(f"LAYER_PYTHON={sys.executable}", f"ARTIFACTS_DIR={tmp_path / 'out'}"),
        ],
        cwd=copied,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"{tmp_path}/functions/process_tasks/queue.py: has the name of Python's own module" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["queue", "json", "random", "concurrent"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_worker_of_the_command_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_package: bool
) -> None:
    path = tmp_path / name if is_package else tmp_path / f"{name}.py"
    file = path / "__init__.py" if is_package else path
    file.parent.mkdir(exist_ok=True)
    file.write_text(RUNNER)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"^runner: {path} has the name of Python's own module '{name}'"):
        load_runner(f"{name}:run")


def test_a_failed_import_names_a_file_beside_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("jobs = []")
    (tmp_path / "orders_of_the_day.py").write_text("import queue\nqueue.jobs.append(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"has no attribute 'jobs'; .*queue\.py has the name of"):
        load_runner("orders_of_the_day:run")


def test_a_function_of_python_itself_can_be_a_runner() -> None:
    assert load_runner("operator:not_")(None) is True  # type: ignore[arg-type]
