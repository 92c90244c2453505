"""Build what leaves the repository: a release of freshq, and the pipeline's package for a cluster.

    python -m local.packages release
    python -m local.packages cluster [--python X.Y] [--processor NAME]
    python -m local.packages newest-spark

A release is the wheel and the sdist of the version in pyproject.toml, checked and tagged; nothing is pushed.

The package for a cluster is two files: the entry point, and an archive with the pipeline and everything it
imports except Spark. The archive has the layout of a packed virtual environment, for
`--archives environment.tar.gz#environment` and PYSPARK_PYTHON=./environment/bin/python. Its `bin/python`
starts the cluster's own interpreter; see docs/decisions/0036-cluster-package.md.

The lock file pins the Spark of EMR's long-term support, so `newest-spark` shows early what a newer Spark
breaks.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from freshq_pipeline.cluster.emr import ARCHIVE, DESCRIPTION, DIGEST, ENTRY_POINT
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TESTS: Final = ("tests/pipeline/test_facts.py",)
_VERSION: Final = "import pyspark; print('Spark', pyspark.__version__, flush=True)"
# Message of every job after an error inside Spark, not in the job, has stopped the session.
_STOPPED_BY_ITSELF: Final = "SparkContext was shut down"
# The default Python of the release in pipeline/template.yaml.
PYTHON: Final = "3.11"
NATIVE: Final = "native"
# Wheels for older C libraries than Amazon Linux 2023's.
PLATFORMS: Final = ("manylinux_2_28_{}", "manylinux_2_17_{}", "manylinux2014_{}")
PROCESSORS: Final = {"x86_64": "x86_64", "arm64": "aarch64"}
# Not needed to run, and a tenth of the size. RECORD would differ by the path of the installing Python.
_LEFT_OUT: Final = ("tests", "test", "__pycache__", "include", "bin", "RECORD")
_LAUNCHER: Final = """#!/bin/sh
# This machine's interpreter, with the packages of this archive after those of Spark.
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/site-packages"
export PYTHONPATH
exec python{python} "$@"
"""

PROJECT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


def allowed() -> str:
    """Return the requirement for Spark in pyproject.toml."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    (found,) = (
        one for one in project["optional-dependencies"]["pipeline"] if one.split(">")[0].strip() == "pyspark"
    )
    return str(found)


def run_tests(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the tests and return their exit status; run them again if Spark stopped by itself.

    A new release of Spark occasionally stops its own session. That says nothing about the tables unless it
    happens twice in a row.
    """
    status, output = _run_shown(command, environment)
    if status != 0 and _STOPPED_BY_ITSELF in output:
        print("newest-spark: Spark stopped by itself; running the tests once more", flush=True)
        status, _ = _run_shown(command, environment)
    return status


def _run_shown(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, show its output immediately, and return its exit status and output."""
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        lines = []
        for line in running.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return running.returncode, "".join(lines)


def test_newest() -> NoReturn:
    """Install the newest Spark into a temporary folder, run the tests with it, and exit with their status."""
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


TARGET: Final = PROJECT / "build" / "pipeline"
REQUIREMENTS: Final = PROJECT / "pipeline" / "requirements.txt"
SOURCES: Final = (PROJECT / "layers" / "freshq" / "freshq", PROJECT / "pipeline" / "freshq_pipeline")
MAIN: Final = PROJECT / "pipeline" / ENTRY_POINT


class PackageFailed(RuntimeError):
    """The package could not be made; the message ends with the output of pip."""


def make(
    target: Path = TARGET, python: str = PYTHON, processor: str = "x86_64", *, compression: int = 6
) -> Path:
    """Make the package, and return its folder.

    Args:
        target: Folder for the package; existing files are replaced.
        python: Version of the cluster's Python, or `native` for this interpreter.
        processor: The template's Architecture in lower case; ignored if native.
        compression: From 0 (fast) to 9 (small).

    Raises:
        PackageFailed: If pip failed.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}" if python == NATIVE else python
    with tempfile.TemporaryDirectory(prefix="freshq-package-") as scratch:
        root = Path(scratch)
        site = root / "site-packages"
        _install(site, [] if python == NATIVE else _chosen(python, processor))
        for source in SOURCES:
            shutil.copytree(source, site / source.name)
        launcher = root / "bin" / "python"
        launcher.parent.mkdir()
        launcher.write_text(_LAUNCHER.format(python=version))
        launcher.chmod(0o755)
        target.mkdir(parents=True, exist_ok=True)
        _archive(root, target / ARCHIVE, compression)
    shutil.copyfile(MAIN, target / ENTRY_POINT)
    files = {name: _digest(target / name) for name in (ENTRY_POINT, ARCHIVE)}
    description = {"python": version, "processor": processor, DIGEST: files}
    (target / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return target


def _chosen(python: str, processor: str) -> list[str]:
    """Return pip's options for wheels of another machine."""
    platforms = [f"--platform={name.format(PROCESSORS[processor])}" for name in PLATFORMS]
    return ["--implementation=cp", f"--python-version={python}", *platforms]


def _install(site: Path, chosen: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-warn-conflicts", "--no-compile", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += [*chosen, f"--target={site}", f"--requirement={REQUIREMENTS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PackageFailed("pip could not install the environment:\n" + done.stderr.strip()[-1000:])


def _archive(root: Path, target: Path, compression: int) -> None:
    """Write an archive that depends only on the content of the files."""
    with (
        whole_file(target) as file,
        gzip.GzipFile("", "wb", compression, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _kept(root):
            archive.add(path, path.relative_to(root).as_posix(), recursive=False, filter=_anonymous)


def _kept(root: Path) -> Iterator[Path]:
    """Yield the files to pack, sorted."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root).parts
        unneeded = inside[0] == "site-packages" and any(part in _LEFT_OUT for part in inside)
        if path.is_file() and not unneeded:
            yield path


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry without time and owner, and with default permissions."""
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ReleaseFailed(RuntimeError):
    """The release cannot be made; the message says why and what to do."""


def version_of(project: Path) -> str:
    """Return the version in pyproject.toml, the only place that states it.

    Raises:
        ReleaseFailed: It is not X.Y.Z.
    """
    version = str(tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    if not VERSION.fullmatch(version):
        msg = f"pyproject.toml: version must be X.Y.Z, got {version!r}"
        raise ReleaseFailed(msg)
    return version


def check_ready(project: Path, version: str) -> None:
    """Check the conditions of a release that need no build.

    Raises:
        ReleaseFailed: The tree is dirty, the tag exists, or the changelog has no section for the version.
    """
    changed = _git(project, "status", "--porcelain")
    if changed:
        msg = f"the working tree has uncommitted changes; commit or stash them first:\n{changed}"
        raise ReleaseFailed(msg)
    if _git(project, "tag", "--list", f"v{version}"):
        msg = f"tag v{version} exists; raise the version in pyproject.toml"
        raise ReleaseFailed(msg)
    if f"\n## [{version}]" not in (project / "CHANGELOG.md").read_text("utf-8"):
        msg = f"CHANGELOG.md has no section '## [{version}]'; rename 'Unreleased' to it and start a new one"
        raise ReleaseFailed(msg)


def build(project: Path, out: Path) -> list[Path]:
    """Build the sdist, and the wheel from it, and check their metadata.

    Args:
        project: Folder of pyproject.toml.
        out: Folder for the files; emptied first.

    Raises:
        ReleaseFailed: The build or the check failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    _run(project, sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out))
    files = sorted(out.iterdir())
    _run(project, sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    return files


def release(project: Path, out: Path) -> str:
    """Build and check the version in pyproject.toml, tag it, and return the tag.

    Raises:
        ReleaseFailed: If a condition is not met or a step failed; then there is no tag.
    """
    version = version_of(project)
    check_ready(project, version)
    for file in build(project, out):
        print(file.relative_to(project))
    _git(project, "tag", "--annotate", f"v{version}", "--message", f"freshq {version}")
    return f"v{version}"


def _git(project: Path, *arguments: str) -> str:
    return _run(project, "git", *arguments).strip()


def _run(project: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"{' '.join(command[:4])} failed:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        raise ReleaseFailed(msg)
    return done.stdout


def write_release() -> None:
    """Make the release and say how to publish it."""
    try:
        tag = release(PROJECT, PROJECT / "build" / "dist")
    except ReleaseFailed as error:
        sys.exit(f"release: {error}")
    print(f"tagged {tag}; to publish it: git push origin {tag}")


def write_package(python: str, processor: str) -> None:
    """Make the package for a cluster and print its files."""
    try:
        made = make(TARGET, python, processor)
    except PackageFailed as error:
        sys.exit(f"pipeline-package: {error}")
    size_mb = (made / ARCHIVE).stat().st_size / 1e6
    print(f"{made / ENTRY_POINT}\n{made / ARCHIVE} ({size_mb:.0f} MB)")


def main() -> None:
    """Make the release or the package, or run the tests on the newest Spark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("release", "cluster", "newest-spark"))
    parser.add_argument("--python", default=PYTHON, help=f"version of the cluster's Python, or {NATIVE}")
    parser.add_argument("--processor", default="x86_64", choices=sorted(PROCESSORS))
    chosen = parser.parse_args()
    if chosen.verb == "release":
        write_release()
    elif chosen.verb == "cluster":
        write_package(chosen.python, chosen.processor)
    else:
        test_newest()


if __name__ == "__main__":
    main()
