"""The pages whose sections are made from benchmarks/results. A test holds each to the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import library_pages
from benchmarks.aims import aims_page
from benchmarks.costs_page import costs_page
from benchmarks.growth_page import growth_page
from benchmarks.pipeline_page import pipeline_page
from benchmarks.render import filled
from benchmarks.summary_page import summary_page
from benchmarks.worker_page import floor_page, throughput_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.render import Sections

DOCS: Final = Path("docs")


def measurements_page() -> Sections:
    """Return the sections of docs/contributing/measurements.md."""
    return {
        **library_pages.policy_sections(),
        **library_pages.sql_sections(),
        **library_pages.asyncio_sections(),
        **library_pages.telemetry_sections(),
        **library_pages.cli_sections(),
    }


PAGES: Final[Mapping[str, Callable[[], Sections]]] = {
    "benchmarks.md": summary_page,
    "contributing/benchmarks.md": aims_page,
    "contributing/cold-starts.md": library_pages.cold_start_page,
    "contributing/floor.md": floor_page,
    "contributing/growth.md": growth_page,
    "contributing/measurements.md": measurements_page,
    "contributing/pipeline.md": pipeline_page,
    "contributing/throughput.md": throughput_page,
    "costs.md": costs_page,
    "overload.md": library_pages.overload_page,
}


def made(page: str) -> str:
    """Return a page with its sections as the files of results make them now."""
    return filled((DOCS / page).read_text("utf-8"), PAGES[page]())


def write() -> list[Path]:
    """Write the pages; return those that changed."""
    changed = []
    for name in PAGES:
        page, text = DOCS / name, made(name)
        if page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")
            changed.append(page)
    return changed
