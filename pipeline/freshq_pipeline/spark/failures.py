"""Errors of Spark and Java, in one line each."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
# Java's messages are long; the beginning is enough.
MAX_REASON_CHARACTERS: Final = 300
MAX_REASON_LINES: Final = 2
# Lines that Java prints before the reason why it does not start.
_NOISE: Final = ("WARNING:", "Setting default log level", "To adjust logging level", "at ")


def innermost_cause(error: BaseException) -> str:
    """Return the innermost cause in a Java stack trace, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    causes = [line for line in lines if "Caused by: " in line or line.startswith("java.")]
    reason = causes[-1].rpartition("Caused by: ")[2] if causes else lines[0]
    return reason[:MAX_REASON_CHARACTERS]


def start_failure(log: str) -> str:
    """Return why Java did not start, in one line; empty if its output does not say.

    Args:
        log: What Java printed.
    """
    lines = [line.strip() for line in log.splitlines()]
    reasons = [line for line in lines if line and not line.startswith(_NOISE)]
    return "; ".join(reasons[:MAX_REASON_LINES])[:MAX_REASON_CHARACTERS]
