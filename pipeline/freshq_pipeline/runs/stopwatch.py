"""How long each part of a run takes, and which one has begun."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(slots=True)
class Stopwatch:
    """Measures the parts of a run.

    Attributes:
        begun: Called with the name of each part when it begins.
        seconds: Duration of each part, by name.
    """

    begun: Callable[[str], None] = lambda _name: None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the duration of a block."""
        self.begun(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 3)
