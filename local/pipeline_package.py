"""Pack what a Spark cluster needs to run the data pipeline: `python -m local.pipeline_package`.

Two files: the entry point, and an archive with the pipeline and all that it imports, Spark excepted. The
archive is laid out as a packed virtual environment is, so that `--archives environment.tar.gz#environment`
and PYSPARK_PYTHON=./environment/bin/python do what they are known for. Its `bin/python` starts the
cluster's own interpreter; see docs/decisions/0036-cluster-package.md.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = PROJECT / "build" / "pipeline"
REQUIREMENTS: Final = PROJECT / "pipeline" / "requirements.txt"
SOURCES: Final = (PROJECT / "layers" / "freshq" / "freshq", PROJECT / "pipeline" / "freshq_pipeline")
ENTRY_POINT: Final = PROJECT / "pipeline" / "main.py"
ARCHIVE: Final = "environment.tar.gz"
DESCRIPTION: Final = "package.json"
# The default of the release that pipeline/template.yaml names.
PYTHON: Final = "3.11"
NATIVE: Final = "native"
# The C library of Amazon Linux 2023 is newer than the newest of these asks for.
PLATFORMS: Final = ("manylinux_2_28_{}", "manylinux_2_17_{}", "manylinux2014_{}")
PROCESSORS: Final = {"x86_64": "x86_64", "arm64": "aarch64"}
# Not needed to run anything, and a tenth of the whole. RECORD names the interpreter that installed.
_LEFT_OUT: Final = ("tests", "test", "__pycache__", "include", "bin", "RECORD")
_LAUNCHER: Final = """#!/bin/sh
# The interpreter of this machine, with what this archive brings behind what Spark brings.
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/site-packages"
export PYTHONPATH
exec python{python} "$@"
"""


class PackageError(RuntimeError):
    """The package could not be made; the message ends with what pip said."""


def make(
    target: Path = TARGET, python: str = PYTHON, processor: str = "x86_64", *, compression: int = 6
) -> Path:
    """Make the package, and return its folder.

    Args:
        target: Folder for it; what is in it is replaced.
        python: Version of the cluster's Python, or `native`: this interpreter on this machine.
        processor: The template's Architecture, lower case; not read if native.
        compression: From 0, quick, to 9, small.

    Raises:
        PackageError: If pip failed.
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
    shutil.copyfile(ENTRY_POINT, target / ENTRY_POINT.name)
    files = {name: _digest(target / name) for name in (ENTRY_POINT.name, ARCHIVE)}
    description = {"python": version, "processor": processor, "sha256": files}
    (target / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return target


def _chosen(python: str, processor: str) -> list[str]:
    """Return the options with which pip takes wheels for another machine."""
    platforms = [f"--platform={name.format(PROCESSORS[processor])}" for name in PLATFORMS]
    return ["--implementation=cp", f"--python-version={python}", *platforms]


def _install(site: Path, chosen: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-warn-conflicts", "--no-compile", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += [*chosen, f"--target={site}", f"--requirement={REQUIREMENTS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this pip
    if done.returncode != 0:
        raise PackageError("pip could not install the environment:\n" + done.stderr.strip()[-1000:])


def _archive(root: Path, target: Path, compression: int) -> None:
    """Write an archive that depends on nothing but the content of the files."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (
            draft.open("wb") as file,
            gzip.GzipFile("", "wb", compression, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in _kept(root):
                archive.add(path, path.relative_to(root).as_posix(), recursive=False, filter=_anonymous)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _kept(root: Path) -> Iterator[Path]:
    """Yield the files to pack, in an order that does not depend on the disk."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root).parts
        unneeded = inside[0] == "site-packages" and any(part in _LEFT_OUT for part in inside)
        if path.is_file() and not unneeded:
            yield path


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry without time and owner, and with the usual rights."""
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Make the package as the arguments say, and tell where it is."""
    parser = argparse.ArgumentParser(description="Pack the data pipeline for a Spark cluster.")
    parser.add_argument("--python", default=PYTHON, help=f"version of the cluster's Python, or {NATIVE}")
    parser.add_argument("--processor", default="x86_64", choices=sorted(PROCESSORS))
    parser.add_argument("--target", type=Path, default=TARGET)
    chosen = parser.parse_args()
    try:
        made = make(chosen.target, chosen.python, chosen.processor)
    except PackageError as error:
        sys.exit(f"pipeline-package: {error}")
    size_mb = (made / ARCHIVE).stat().st_size / 1e6
    sys.stdout.write(f"{made / ENTRY_POINT.name}\n{made / ARCHIVE} ({size_mb:.0f} MB)\n")


if __name__ == "__main__":
    main()
