"""Random verbs by a process whose time of day is set: `python -m tests.soak.stepped`."""

import argparse
import random
import time
from contextlib import closing
from pathlib import Path

from tests.soak.actors import Actor, Place
from tests.soak.history import Journal


def main() -> None:
    """Read the arguments and act until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("journal", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("lease_seconds", type=float)
    parser.add_argument("epoch", type=float, help="when the monotonic clock was zero")
    parser.add_argument("--table")
    parser.add_argument("--trusting", action="store_true", help="go by the time of day")
    given = parser.parse_args()
    place = Place(given.url, given.table, lease_seconds=given.lease_seconds)
    journal = Journal(given.journal, given.journal.stem, lambda: time.monotonic() + float(given.epoch))
    with closing(place.open(time.time if given.trusting else None)) as queue:
        actor = Actor(queue, journal, random.Random(given.seed))
        while True:
            actor.act()


if __name__ == "__main__":
    main()
