"""The pages that are made from benchmarks/results. A test holds each to the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import costs_page, dollars, growth_page, overload_page, scale, summary_page, worker_page
from benchmarks.figures import figures_of, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCS: Final = Path("docs")


def _costs() -> str:
    return costs_page.page(figures_of("capacity"), figures_of("growth_dynamodb")["figures"])


def _growth() -> str:
    return growth_page.page({store: figures_of(f"growth_{store}") for store in growth_page.STORES})


def _overload() -> str:
    return overload_page.page((DOCS / "overload.md").read_text("utf-8"), figures_of("overload"))


# Each page, and what makes it from the files as they are now.
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "benchmarks.md": summary_page.current,
    "costs.md": _costs,
    "dollars.md": dollars.current,
    "growth.md": _growth,
    "overload.md": _overload,
    "scale.md": scale.current,
    "throughput.md": lambda: worker_page.page(read("worker"), read("distance")),
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
