"""The figures of cold starts within docs/deploy.md, made from the results of `benchmarks.coldstart`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.sections import filled, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IMPORT: Final = 0
WITH_CLIENTS: Final = 1
TRACED: Final = "now"
UNTRACED: Final = "untraced"
SHOWN_SHARE: Final = 0.04


def page(written: str, result: Mapping[str, Any]) -> str:
    """Return the page with its figures updated.

    Args:
        written: The page.
        result: What `benchmarks.coldstart` wrote.
    """
    found = result["figures"]
    return filled(
        written,
        {
            ("coldstart", "ratios"): _ratios(found, result["machine"]),
            ("coldstart", "imports"): _imports(found["shares_of_imports"]),
        },
    )


def ratio(function: Mapping[str, Any], variant: str, part: int) -> float:
    """Return a function's processor time as a part of that before."""
    return float(function[variant][part] / function["before"][part])


def _ratios(found: Mapping[str, Any], machine: Mapping[str, Any]) -> Iterator[str]:
    yield f"Medians of {found['rounds']} starts in turns, Python {machine['python']}, {machine['system']}:"
    yield ""
    columns = ((TRACED, IMPORT), (TRACED, WITH_CLIENTS), (UNTRACED, WITH_CLIENTS))
    yield from table(
        ["function", "import", "import and clients", "the same with `Tracing=off`"],
        [
            [
                "".join(word.title() for word in name.split("_")),
                *(f"{ratio(each, *column):.2f}" for column in columns),
            ]
            for name, each in found["processor_ms"].items()
        ],
    )


def _imports(shares: Mapping[str, float]) -> Iterator[str]:
    yield "| of the time that imports take, without what a package imports itself | share |"
    yield "| --- | ---: |"
    shown = {name: share for name, share in shares.items() if share >= SHOWN_SHARE}
    for name, share in (shown | {"all others": 1 - sum(shown.values())}).items():
        yield f"| {name} | {share:.0%} |"
