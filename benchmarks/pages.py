"""Pages with sections made from benchmarks/results. A test holds each page to the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import library_pages
from benchmarks.aims import aims_page
from benchmarks.costs_page import costs_page
from benchmarks.pipeline_page import pipeline_page
from benchmarks.render import filled, markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from benchmarks.render import Sections

DOCS: Final = Path("docs")
PAGES: Final[Mapping[str, Callable[[], Sections]]] = {
    "compare.md": library_pages.compare_page,
    "contributing/benchmarks.md": aims_page,
    "contributing/cold-starts.md": library_pages.cold_start_page,
    "contributing/floor.md": library_pages.floor_page,
    "contributing/growth.md": library_pages.growth_page,
    "contributing/measurements.md": library_pages.measurements_page,
    "contributing/pipeline.md": pipeline_page,
    "contributing/throughput.md": library_pages.throughput_page,
    "costs.md": costs_page,
    "overload.md": library_pages.overload_page,
    "value.md": library_pages.value_page,
}


def made(page: str) -> str:
    """Return a page with its sections made from the current results."""
    return filled((DOCS / page).read_text("utf-8"), PAGES[page]())


def sections_of(files: Container[str]) -> str:
    """Return the sections made from the given files of results as Markdown."""
    return "\n\n".join(
        markdown(blocks)
        for sections in PAGES.values()
        for (file, _name), blocks in sections().items()
        if file in files
    )


def write() -> list[Path]:
    """Write the pages; return the changed ones."""
    changed = []
    for name in PAGES:
        page, text = DOCS / name, made(name)
        if page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")
            changed.append(page)
    return changed
