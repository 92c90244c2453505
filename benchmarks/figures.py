"""The parts of `make bench`, the order in which contenders run, and the files in benchmarks/results."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from local.servers import DYNAMODB_LOCAL_PACKAGE, DYNAMODB_LOCAL_VERSION
from rich.console import Console
from rich.progress import track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """One part: a function of this package that measures and writes files in benchmarks/results.

    Attributes:
        function: Its module, and after a colon its name unless that is `main`. Its parameters are the
            options.
        files: The results that it writes, without folder and suffix.
        minutes: Rough duration.
        page: The page in docs that shows its figures.
        what: Its subject, in one line.
        is_default: Whether it runs when no part is named.
        has_peers: Whether it takes an interpreter in which other queues are installed.
    """

    function: str
    files: Sequence[str]
    minutes: int
    page: str
    what: str
    is_default: bool = False
    has_peers: bool = False


PARTS: Final = {
    name: Part(**part)
    for name, part in tomllib.loads(Path(__file__).with_name("parts.toml").read_text("utf-8")).items()
}
# Of typical size: an item stays well below 1 KB, which is one write unit.
PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}

LONGEST_SECONDS: Final = 300
CONTEXT: Final = multiprocessing.get_context("spawn")
K = TypeVar("K")
T = TypeVar("T")


def rotated(contenders: Sequence[T], number: int) -> list[T]:
    """Return the contenders in the order of a round.

    Each round starts with the next contender, because the first of a round finds a colder machine.

    Args:
        contenders: All contenders.
        number: Number of the round, from 0.
    """
    first = number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def in_turns(contenders: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Run every contender once a round; return the results of each, by round."""
    found: dict[K, list[T]] = {name: [] for name in contenders}
    for number in track(range(rounds), "rounds", console=Console(stderr=True)):
        for name in rotated([*contenders], number):
            found[name].append(contenders[name]())
    return found


def in_processes(job: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Run a job in one process for each tuple of arguments; return the results.

    Args:
        job: Called with a function that waits until all processes have called it, and the arguments.
        arguments: Arguments of each process.

    Raises:
        queue.Empty: If a process exited without a result.
    """
    barrier, results = CONTEXT.Barrier(len(arguments)), CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_child, args=(job, barrier, results, each)) for each in arguments]
    for process in processes:
        process.start()
    found: list[T] = [results.get(timeout=LONGEST_SECONDS) for _ in processes]
    for process in processes:
        process.join()
    return found


def _child(job: Any, barrier: Any, results: Any, arguments: tuple[Any, ...]) -> None:
    results.put(job(lambda: barrier.wait(LONGEST_SECONDS), *arguments))


@contextmanager
def in_background(job: Callable[..., object], *arguments: Any) -> Iterator[Any]:
    """Run a job in another process during the block; yield its first message.

    Args:
        job: Called with the arguments, a queue for its word, and the event that ends it.
        arguments: Its first arguments.

    Raises:
        queue.Empty: If it says nothing.
    """
    words, over = CONTEXT.Queue(), CONTEXT.Event()
    process = CONTEXT.Process(target=job, args=(*arguments, words, over))
    process.start()
    try:
        yield words.get(timeout=LONGEST_SECONDS)
    finally:
        over.set()
        process.join(LONGEST_SECONDS)


def numbers(text: str) -> list[int]:
    """Return the numbers of a comma-separated option."""
    return [int(part) for part in text.split(",")]


RESULTS: Final = Path("benchmarks/results")
GIB: Final = 2**30
# Average of the last minute before this process did anything: the load of other programs.
LOAD_BEFORE: Final = os.getloadavg()[0]
# Writing results and pages does not change the measured code.
WRITTEN: Final = (":!benchmarks/results", ":!docs")
PACKAGES: Final = (
    "boto3", "duckdb", "ministack", "opentelemetry-sdk", "psycopg", "pymysql", "pyspark", "sqlalchemy",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """Return the shape of this machine, without its name, and the versions of packages."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / GIB),
        "system": f"{platform.system()} on {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(LOAD_BEFORE, 1),
        # Average of the last 15 minutes, including the part's own work.
        "load": round(os.getloadavg()[2], 1),
        "versions": {name: version(name) for name in PACKAGES}
        | {DYNAMODB_LOCAL_PACKAGE: DYNAMODB_LOCAL_VERSION},
    }


def commit(folder: Path = Path()) -> str:
    """Return the commit of the code in a folder, with "+" if the code has changed since.

    Raises:
        subprocess.CalledProcessError: If the folder is not in a git repository.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def today() -> str:
    """Return the date in UTC as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()


def write(name: str, figures: Any) -> None:
    """Write the figures of a part with the date, the commit and the machine."""
    whole = {"date": today(), "commit": commit(), "machine": machine(), "figures": figures}
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


def read(name: str) -> dict[str, Any]:
    """Return a file of results: date, commit, machine and figures. Older files have no commit.

    Raises:
        FileNotFoundError: If the part has not been measured.
    """
    whole: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return whole


def is_measured(name: str) -> bool:
    """Return whether a file of results exists."""
    return (RESULTS / f"{name}.json").exists()


def figures_of(name: str) -> Any:
    """Return the figures of a file of results."""
    return read(name)["figures"]
