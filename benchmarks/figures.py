"""The files in benchmarks/results: what each part of `make bench` found, on which machine and day."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")


def rotated(contenders: Sequence[T], number: int) -> list[T]:
    """Return the contenders in the order of a round: each round begins with another one.

    What runs first finds a colder machine; so each has each place as often as the others.

    Args:
        contenders: All, in any order.
        number: Number of the round, from 0.
    """
    first = number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


RESULTS: Final = Path("benchmarks/results")
GIB: Final = 2**30
# Of the last minute, before this process did anything: what else the machine does.
LOAD_BEFORE: Final = os.getloadavg()[0]
# What a part writes itself does not change the code that it measured.
WRITTEN: Final = (":!benchmarks/results", ":!docs")


def machine(packages: Sequence[str] = (), programs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the shape of this machine, never its name.

    Args:
        packages: Installed packages whose versions matter to the figures.
        programs: Versions of other programs, by their names.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {name: version(name) for name in packages} | dict(programs or {})
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / GIB),
        "system": f"{platform.system()} on {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(LOAD_BEFORE, 1),
        # Of the last 15 minutes, this part's own work included.
        "load": round(os.getloadavg()[2], 1),
    } | ({"versions": versions} if versions else {})


def commit(folder: Path = Path()) -> str:
    """Return the commit of the code in a folder, with "+" if it was changed since.

    Raises:
        subprocess.CalledProcessError: If the folder is in no git repository.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def today() -> str:
    """Return the date in UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()


def write(
    name: str,
    figures: Any,
    packages: Sequence[str] = (),
    programs: Mapping[str, str] | None = None,
) -> Path:
    """Write the figures of a part, with the date, the commit and the machine; return the file."""
    whole = {
        "date": today(),
        "commit": commit(),
        "machine": machine(packages, programs),
        "figures": figures,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def read(name: str) -> dict[str, Any]:
    """Return the file of a part: its date, commit, machine and figures. Older files have no commit.

    Raises:
        FileNotFoundError: If the part was never measured.
    """
    whole: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return whole


def is_measured(name: str) -> bool:
    """Return whether there is a file of a part."""
    return (RESULTS / f"{name}.json").exists()


def figures_of(name: str) -> Any:
    """Return only the figures of a part."""
    return read(name)["figures"]
