"""Parts of a page that are made from results, between marks, with what is written by hand around them."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Takes the name of a file of results, and that of a section.
BEGIN: Final = "<!-- made from benchmarks/results/{}.json: {} -->\n"
END: Final = "<!-- end -->"
MARK: Final = re.compile(r"<!-- made from benchmarks/results/(\w+)\.json: ([\w ]+) -->")
Name = tuple[str, str]
WIDTH: Final = 118


def filled(written: str, sections: Mapping[Name, Iterable[str]]) -> str:
    """Return a page with its sections updated.

    Args:
        written: The page.
        sections: The lines of each, by the file of results that they are made from and a name.

    Raises:
        ValueError: If a section has no marks in the page, or marks have no section.
    """
    if unknown := [": ".join(name) for name in MARK.findall(written) if name not in sections]:
        msg = f"nothing makes the section {unknown[0]!r}"
        raise ValueError(msg)
    for name, lines in sections.items():
        head, begin, rest = written.partition(BEGIN.format(*name))
        _, end, tail = rest.partition(END)
        if not end:
            msg = f"no marks around the section {': '.join(name)!r}"
            raise ValueError(msg)
        written = head + begin + "\n" + "\n".join(lines) + "\n\n" + end + tail
    return written


def paragraph(text: str) -> list[str]:
    """Return the lines of a paragraph."""
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table: the first column is text, the others are figures."""
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
