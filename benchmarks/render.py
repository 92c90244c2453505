"""Render pages: templates, prose and tables become Markdown between marks.

A file in benchmarks/templates has the sections of a page, each below its mark. Paragraphs are wrapped. The
filter `f` formats a number, a list of rounds as median and range, and None as nothing.
"""

from __future__ import annotations

import re
import string
import textwrap
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

# Takes the name of a file of results, and the name of a section.
BEGIN: Final = "<!-- made from benchmarks/results/{}.json: {} -->\n"
END: Final = "<!-- end -->"
MARK: Final = re.compile(r"<!-- made from benchmarks/results/(\w+)\.json: ([\w ]+) -->")
WIDTH: Final = 118


class _Cells(string.Formatter):
    """Formats like `str.format`, but None becomes empty, and a list of rounds becomes median and range."""

    @override
    def format_field(self, value: Any, format_spec: str) -> str:
        return formatted(value, format_spec)


def formatted(value: Any, form: str, unit: str = "") -> str:
    """Return a number with its unit, a list of rounds as median and range, and None as an empty text."""
    if value is None:
        return ""
    return spread(value, form) if isinstance(value, list) else f"{value:{form}}{unit}"


def bounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure for a picture: its share with the bounds of its interval."""
    share, half = row.get("mean", row.get("share")), row.get("half_width", 0.0)
    return {**row, "share": share, "low": max(0.0, share - half), "high": min(max(1.0, share), share + half)}


def spread(numbers: Sequence[float], form: str) -> str:
    """Return the median of the rounds with the range."""
    return f"{median(numbers):{form}} ({min(numbers):{form}} to {max(numbers):{form}})"


def bold(text: str, *, when: bool) -> str:
    """Return a text, bold on a condition."""
    return f"**{text}**" if when else text


def cell(form: str, row: Any) -> str:
    """Return a cell: `form` formatted with the fields of the row, or with the row as {0}."""
    return _Cells().vformat(form, (row,), row if isinstance(row, dict) else {})


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph, wrapped to the page's width."""

    text: str

    def lines(self) -> list[str]:
        """Return the wrapped lines."""
        text = " ".join(self.text.split())
        return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose figures are aligned to the right.

    Attributes:
        head: Headings of the columns.
        rows: The cells.
        texts: Number of leading columns of text.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1

    def lines(self) -> list[str]:
        """Return the lines."""
        ruler = "| --- " * self.texts + "| ---: " * (len(self.head) - self.texts) + "|"
        return [f"| {' | '.join(self.head)} |", ruler, *(f"| {' | '.join(row)} |" for row in self.rows)]

    @override
    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True, slots=True)
class Written:
    """A table that a template wrote."""

    text: str

    def lines(self) -> list[str]:
        """Return the lines."""
        return self.text.splitlines()


def columns(rows: Iterable[Any], by_heading: Mapping[str, str], texts: int = 1) -> Table:
    """Return a table declared by its columns: the form of a row by heading."""
    cells = [[cell(form, row) for form in by_heading.values()] for row in rows]
    return Table([*by_heading], cells, texts)


def across(
    corner: str,
    by_row: Mapping[str, Mapping[Any, Any]],
    form: str | Callable[[Any], str],
    heading: Callable[[Any], str] = str,
) -> Table:
    """Return a table of one figure by row and column; cells without a figure are empty."""
    keys = list(dict.fromkeys(key for of_row in by_row.values() for key in of_row))
    shown = form if callable(form) else lambda value: cell(f"{{value:{form}}}", {"value": value})
    rows = [
        [name, *(shown(of_row[key]) if key in of_row else "" for key in keys)]
        for name, of_row in by_row.items()
    ]
    return Table([corner, *map(heading, keys)], rows)


def pivot(
    rows: Iterable[Mapping[str, Any]], row: str, column: str, shown: Collection[Any] = ()
) -> dict[str, dict[Any, Any]]:
    """Return rows by two of their fields, for `across`, with the `shown` columns, by default all."""
    found: dict[str, dict[Any, Any]] = {}
    for one in rows:
        by_column = found.setdefault(one[row], {})
        if not shown or one[column] in shown:
            by_column[one[column]] = one
    return found


Block = Prose | Table | Written
# Blocks of each section by its file of results and its name.
Sections = dict[tuple[str, str], list[Block]]


_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(),  # not of Markdown
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["bounded"] = bounded
_TEMPLATES.filters["f"] = formatted
_TEMPLATES.filters["percentiles"] = lambda each, which: _percentiles(
    [one[which] for one in each if which in one]
)
_TEMPLATES.filters["only"] = lambda by_name, names: {name: by_name[name] for name in by_name if name in names}
_TEMPLATES.globals |= {
    "across": across,
    "bold": bold,
    "columns": columns,
    "median": median,
    "pivot": pivot,
    "quotients": lambda ours, theirs: [*map(truediv, ours, theirs)],
}


def _percentiles(numbers: Sequence[float]) -> str:
    """Return the 50th and the 99th percentile; nothing of no numbers."""
    cuts = quantiles(numbers, n=100, method="inclusive") if numbers else ()
    return f"{cuts[49]:.1f} / {cuts[98]:.1f}" if cuts else ""


def rendered(template: str, **names: Any) -> str:
    """Return the text of a file in benchmarks/templates, which sees the given names."""
    return _TEMPLATES.get_template(template).render(names)


def sections(template: str, **names: Any) -> Sections:
    """Return the sections of a page's template."""
    parts = MARK.split(rendered(f"{template}.md", **names))[1:]
    return {
        (file, name): [
            Written(text) if text.startswith("|") else Prose(text)
            for text in re.split(r"\n\s*\n", body.strip())
        ]
        for file, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown, without a line break at the end."""
    return "\n\n".join("\n".join(block.lines()) for block in blocks)


def filled(written: str, sections: Sections) -> str:
    """Return a page with updated sections; the text around their marks stays.

    Args:
        written: The page.
        sections: The sections between the marks.

    Raises:
        ValueError: If a section has no marks in the page, or marks have no section.
    """
    if unknown := [": ".join(name) for name in MARK.findall(written) if name not in sections]:
        msg = f"nothing makes the section {unknown[0]!r}"
        raise ValueError(msg)
    for name, blocks in sections.items():
        head, begin, rest = written.partition(BEGIN.format(*name))
        _, end, tail = rest.partition(END)
        if not end:
            msg = f"no marks around the section {': '.join(name)!r}"
            raise ValueError(msg)
        written = f"{head}{begin}\n{markdown(blocks)}\n\n{end}{tail}"
    return written
