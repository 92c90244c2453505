"""The dashboard beside the demonstration."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from freshq.errors import MissingExtra, needs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq import Queue

# The emulator shares the processors with the load: a page that is open looks at the queue this seldom.
EVERY_SECONDS: Final = 3.0


@contextmanager
def dashboard_beside(queue: Queue) -> Iterator[str | None]:
    """Serve a dashboard on a free port as long as the block lasts; nobody reads the queue until it is opened.

    Args:
        queue: What it shows.

    Yields:
        The address to open; None if the extra is not installed.
    """
    try:
        with needs("dashboard"):
            from freshq.cli.dashboard.app import Shown  # noqa: PLC0415 - an extra
            from freshq.cli.dashboard.server import Address, Dashboard  # noqa: PLC0415 - an extra
    except MissingExtra:
        yield None
        return
    with Dashboard(Shown(queue, every_seconds=EVERY_SECONDS), Address()).beside() as url:
        yield url
