"""`make release`: build the wheel and the sdist, check them, and tag the version. Pushes nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(RuntimeError):
    """The release cannot be made; the message says why and what to do."""


def version_of(project: Path) -> str:
    """Return the version in pyproject.toml, the only place that states it.

    Raises:
        ReleaseError: It is not X.Y.Z.
    """
    version = str(tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    if not VERSION.fullmatch(version):
        msg = f"pyproject.toml: version must be X.Y.Z, got {version!r}"
        raise ReleaseError(msg)
    return version


def check_ready(project: Path, version: str) -> None:
    """Check everything that does not need a build.

    Raises:
        ReleaseError: The tree is dirty, the tag exists, or the changelog has no section for the version.
    """
    changed = _git(project, "status", "--porcelain")
    if changed:
        msg = f"the working tree has uncommitted changes; commit or stash them first:\n{changed}"
        raise ReleaseError(msg)
    if _git(project, "tag", "--list", f"v{version}"):
        msg = f"tag v{version} exists; raise the version in pyproject.toml"
        raise ReleaseError(msg)
    if f"\n## [{version}]" not in (project / "CHANGELOG.md").read_text("utf-8"):
        msg = f"CHANGELOG.md has no section '## [{version}]'; rename 'Unreleased' to it and start a new one"
        raise ReleaseError(msg)


def build(project: Path, out: Path) -> list[Path]:
    """Build the sdist, and the wheel from it, and check their metadata.

    Args:
        project: Folder of pyproject.toml.
        out: Where the files go; emptied first.

    Raises:
        ReleaseError: The build or the check failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    _run(project, sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out))
    files = sorted(out.iterdir())
    _run(project, sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    return files


def release(project: Path, out: Path) -> str:
    """Build and check the version in pyproject.toml, tag it, and return the tag.

    Raises:
        ReleaseError: Something is not ready, or a step failed; then there is no tag.
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
        raise ReleaseError(msg)
    return done.stdout


def main() -> int:
    """Make the release; return the exit status."""
    try:
        tag = release(PROJECT, PROJECT / "build" / "dist")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"tagged {tag}; to publish it: git push origin {tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
