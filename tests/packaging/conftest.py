"""Fresh environments with the built wheel in them, and no package that the wheel does not ask for."""

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip."""

    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment, away from the checkout."""
        program, *arguments = command
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "AWS_DEFAULT_REGION": "us-east-1"},
            capture_output=True,
            text=True,
            check=False,
        )


def needed(requirements: list[Requirement]) -> set[str]:
    """Return the distributions that requirements ask for, and what those ask for."""
    found: set[str] = set()
    queue = [(each, extra) for each in requirements for extra in each.extras or {""}]
    seen = set()
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found.add(name)
        for line in distribution(name).requires or []:
            child = Requirement(line)
            if child.marker is None or child.marker.evaluate({"extra": extra}):
                queue += [(child, each) for each in {"", *child.extras}]
    return found


def install(names: set[str], site: Path) -> None:
    """Copy distributions of the running environment, so that no test needs a package registry."""
    for name in names - {"freshq"}:
        for file in distribution(name).files or []:
            source = Path(str(file.locate()))
            target = site / str(file)
            if ".." not in file.parts and source.suffix != ".pyc" and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def environment(wheel: Path, folder: Path, *extras: str) -> Environment:
    """Make a fresh environment with the wheel, its dependencies and those of its extras."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder), "install"),
            *("--quiet", "--no-deps", "--no-index", str(wheel)),
        ],
        capture_output=True,
        check=True,
    )
    metadata = next(site.glob("freshq-*.dist-info/METADATA")).read_text(encoding="utf-8")
    asked = [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    wanted = [
        each
        for each in asked
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
    install(needed(wanted), site)
    return Environment(folder)
