"""The tables within docs/overload.md, made from the results of `benchmarks.overload`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BEGIN: Final = "<!-- made from benchmarks/results/overload.json: {} -->\n"
END: Final = "<!-- end -->"
SHOWN_LOADS: Final = (0.5, 0.95, 1.1, 2.0, 5.0, 10.0)
SHOWN_POLICY_LOADS: Final = (0.8, 0.95, 1.1, 2.0, 3.0, 10.0)


def page(written: str, report: Mapping[str, Any]) -> str:
    """Return the page with its tables anew.

    Args:
        written: The page.
        report: The figures of `benchmarks.overload`.

    Raises:
        ValueError: If the page lacks the marks around a table.
    """
    uneven = [
        row | {"order": "the same, tasks of uneven length"} for row in report["source_with_uneven_tasks"]
    ]
    tables = {
        "orders": _table([*report["by_load"], *uneven], "order", SHOWN_LOADS),
        "policies": _table(report["by_policy"], "policy", SHOWN_POLICY_LOADS),
        "tenants": _table(report["by_flood"], "tenants", SHOWN_LOADS),
    }
    for name, lines in tables.items():
        head, begin, rest = written.partition(BEGIN.format(name))
        _, end, tail = rest.partition(END)
        if not end:
            msg = f"docs/overload.md: no marks around the table {name!r}"
            raise ValueError(msg)
        written = head + begin + "\n" + "\n".join(lines) + "\n\n" + end + tail
    return written


def _table(rows: Sequence[Mapping[str, Any]], kind: str, loads: Sequence[float]) -> Iterator[str]:
    yield "| at load | " + " | ".join(f"{load:g}" for load in loads) + " |"
    yield "| --- |" + " ---: |" * len(loads)
    figures = {(row[kind], row["load"]): row for row in rows}
    for name in dict.fromkeys(row[kind] for row in rows):
        shown = " | ".join(_with_interval(figures[name, load]) for load in loads)
        yield f"| {name} | {shown} |"


def _with_interval(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.2f} ± {row['half_width']:.2f}"
