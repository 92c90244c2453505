"""The section of docs/contributing/floor.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import is_measured, read
from benchmarks.render import Prose, Sections, columns

if TYPE_CHECKING:
    from collections.abc import Mapping

VERBS: Final = ("put", "put_many(500)", "claim(1)", "claim(10)", "complete", "settle_many(10)")
# The most that a verb may take, as a multiple of its floor.
AIMS: Final = dict(zip(VERBS, (2.0, 2.8, 2.0, 2.5, 2.0, 2.5), strict=True))


def floor_page() -> Sections:
    """Return the section of docs/contributing/floor.md."""
    if not is_measured("floor"):
        return {("floor", "ratios"): [Prose("Not measured yet.")]}
    result = read("floor")
    found, machine = result["figures"], result["machine"]
    text = f"""Minimum of {found["rounds"]} rounds in turns, {found["tasks"]:,} tasks each, on Python
        {machine["python"]} load average {machine["load_before"]} before. Bold ratios miss the aim."""
    rows = [
        {"database": database, "verb": verb, **each, "ratio": _ratio(verb, each)}
        for database, verbs in found["databases"].items()
        for verb, each in verbs.items()
    ]
    table = columns(
        rows,
        {
            "database": "{database}",
            "verb": "{verb}",
            "freshq, µs a task": "{freshq_us:.1f}",
            "floor, µs a task": "{floor_us:.1f}",
            "ratio": "{ratio}",
            "aim, at most": lambda row: f"{AIMS[row['verb']]:.1f}",
        },
        texts=2,
    )
    return {("floor", "ratios"): [Prose(text), table]}


def _ratio(verb: str, each: Mapping[str, Any]) -> str:
    ratio = f"{each['freshq_us'] / each['floor_us']:.2f}"
    return f"**{ratio}**" if float(ratio) > AIMS[verb] else ratio
