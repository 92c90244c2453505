"""Which module reads which format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq_pipeline.schemas import Format
from freshq_pipeline.sources import export, landed, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_CANONICAL: Final[dict[Format, Callable[[DataFrame], DataFrame]]] = {
    Format.LANDED: landed.canonical,
    Format.STREAMS: streams.canonical,
    Format.KINESIS: streams.canonical,
    Format.EXPORT: export.canonical,
}


def canonical(lines: DataFrame, form: Format) -> DataFrame:
    """Return the canonical events of lines with `problem`, and beside them what the lines had.

    Args:
        lines: With `value`, the text.
        form: How the lines are written.
    """
    return _CANONICAL[form](lines)
