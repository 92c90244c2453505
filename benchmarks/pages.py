"""The pages that are made from benchmarks/results. A test holds each to the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import (
    costs_page,
    deploy_page,
    dollars_page,
    growth_page,
    library_pages,
    overload_page,
    pipeline_page,
    scale,
    sql_page,
    summary_page,
    worker_page,
)
from benchmarks.figures import figures_of, is_measured, read
from benchmarks.parts import PARTS
from benchmarks.sections import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCS: Final = Path("docs")


def _costs() -> str:
    return costs_page.page(figures_of("capacity"), figures_of("growth_dynamodb")["figures"])


def _growth() -> str:
    report = {store: figures_of(f"growth_{store}") for store in growth_page.STORES}
    return growth_page.page(report, figures_of("capacity"))


def _overload() -> str:
    return overload_page.page(_written("overload"), figures_of("overload"))


def _measurements() -> str:
    sections = {
        **overload_page.sections(figures_of("overload"), figures_of("simulator")),
        **sql_page.sections(_results("contributing/measurements")),
        **library_pages.sections(*map(figures_of, ("asyncio", "cli", "telemetry"))),
    }
    return filled(_written("contributing/measurements"), sections)


def _of_workers() -> dict[int, dict[str, Any]]:
    return {processes: read(file) for processes, file in worker_page.FILES.items() if is_measured(file)}


def _written(page: str) -> str:
    return (DOCS / f"{page}.md").read_text("utf-8")


def _results(page: str) -> dict[str, dict[str, Any]]:
    """Return what the parts wrote whose figures are on a page, by the name of the file."""
    parts = (part for part in PARTS.values() if part.page == f"{page}.md")
    return {file: read(file) for part in parts for file in part.files if is_measured(file)}


# Each page, and what makes it from the files as they are now.
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "benchmarks.md": summary_page.current,
    "contributing/measurements.md": _measurements,
    "costs.md": _costs,
    "deploy.md": lambda: deploy_page.page(_written("deploy"), read("coldstart")),
    "dollars.md": dollars_page.current,
    "growth.md": _growth,
    "overload.md": _overload,
    "pipeline.md": lambda: pipeline_page.page(_written("pipeline"), _results("pipeline")),
    "scale.md": scale.current,
    "throughput.md": lambda: worker_page.page(_of_workers(), read("lone"), read("distance")),
}


def write() -> list[Path]:
    """Write the pages; return those that changed."""
    changed = []
    for name, made in PAGES.items():
        page, text = DOCS / name, made()
        if not page.exists() or page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")
            changed.append(page)
    return changed
