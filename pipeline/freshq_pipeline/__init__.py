"""The data pipeline of freshq: the outcome of every task, and replays under other policies.

Each public name is loaded when it is first used, with PySpark only if it needs that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from freshq.errors import needs

if TYPE_CHECKING:
    from freshq_pipeline.errors import BadInput, PipelineError
    from freshq_pipeline.replays.grid import Grid
    from freshq_pipeline.replays.replaying import replay
    from freshq_pipeline.runs.frames import PipelineRun, run, tables
    from freshq_pipeline.runs.request import Options
    from freshq_pipeline.schemas import Format

__all__ = ["BadInput", "Format", "Grid", "Options", "PipelineError", "PipelineRun", "replay", "run", "tables"]

_MODULES: Final = {
    "BadInput": "freshq_pipeline.errors",
    "Format": "freshq_pipeline.schemas",
    "Grid": "freshq_pipeline.replays.grid",
    "Options": "freshq_pipeline.runs.request",
    "PipelineError": "freshq_pipeline.errors",
    "PipelineRun": "freshq_pipeline.runs.frames",
    "replay": "freshq_pipeline.replays.replaying",
    "run": "freshq_pipeline.runs.frames",
    "tables": "freshq_pipeline.runs.frames",
}

if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        if name not in _MODULES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        with needs("pipeline"):
            value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
