"""Locks that outlive a fork are free in the child: `new_lock` makes them, or a fork replaces them."""

import re
from pathlib import Path

FRESHQ = Path(__file__).parents[3] / "layers/freshq/freshq"
ROOMS = ("matching", "model", "policy", "queue", "stores", "telemetry")
# Modules with locks of their own, and how many: a forked child gets new ones.
REPLACED = {
    "model/forks.py": 2,  # makes the others
    "stores/dynamodb/leases.py": 3,  # a child begins records of its own
    "stores/notifier.py": 2,  # at the fork
    "stores/sql/forks.py": 2,  # at the fork
    "stores/sql/watching.py": 3,  # `forget_threads` and `abandon`
}
LOCK = re.compile(r"threading\.R?Lock\b(?=\(\)|\))")


def test_no_lock_of_a_queue_or_store_is_held_for_ever_in_a_forked_child() -> None:
    found = {
        path.relative_to(FRESHQ).as_posix(): len(LOCK.findall(path.read_text(encoding="utf-8")))
        for room in ROOMS
        for path in (FRESHQ / room).rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == REPLACED
