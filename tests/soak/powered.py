"""Random verbs by a process on a machine whose power is cut: `python -m tests.soak.powered`.

It sometimes closes and reopens its queue, each time with a new journal.
"""

import argparse
import itertools
import random
from contextlib import closing
from pathlib import Path
from typing import Any

from freshq.stores.sql import database
from tests.soak.actors import Actor, Place, Watch, opened
from tests.soak.history import Journal

# Pages of log after which SQLite copies it into the file: few, so that a short run does it often.
LOG_PAGES = 100
# Maximum number of acts between two openings of the queue.
ACTS = 60


def play(place: Place, folder: Path, name: str, seed: int) -> None:
    """Act until killed."""
    rng = random.Random(seed)
    for life in itertools.count():
        watch = Watch()
        with closing(opened(place, watch)) as queue:
            journal = Journal(folder / f"{name}-{life}.jsonl", f"{name}-{life}")
            actor = Actor(queue, journal, rng, watch)
            for _ in range(rng.randint(1, ACTS)):
                actor.act()


def with_sqlite_synchronous(level: str) -> None:
    """Make SQLite wait for the disk in another way than freshq's default."""
    on_connect: Any = database._ON_CONNECT
    prepare = on_connect["sqlite"]

    def prepared(connection: Any, record: object, limits: object) -> None:
        prepare(connection, record, limits)
        connection.execute(f"PRAGMA synchronous={level}")

    on_connect["sqlite"] = prepared


def main() -> None:
    """Read the arguments and act."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("seed", type=int)
    parser.add_argument("--synchronous")
    given = parser.parse_args()
    database.SQLITE_LOG_PAGES = LOG_PAGES  # type: ignore[misc]
    if given.synchronous is not None:
        with_sqlite_synchronous(given.synchronous)
    play(Place(given.url), given.folder, given.name, given.seed)


if __name__ == "__main__":
    main()
