"""Reduce errors of Spark and Java to one line."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
# Java's messages are long; the beginning names the cause.
MAX_REASON_CHARACTERS: Final = 300
MAX_REASON_LINES: Final = 2
# Prefixes of lines that Java prints before it says why it did not start.
_NOISE: Final = ("WARNING:", "Setting default log level", "To adjust logging level", "at ")


def innermost_cause(error: BaseException) -> str:
    """Return the innermost cause of a Java stack trace as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    causes = [line for line in lines if "Caused by: " in line or line.startswith("java.")]
    reason = causes[-1].rpartition("Caused by: ")[2] if causes else lines[0]
    return reason[:MAX_REASON_CHARACTERS]


def start_failure(log: str) -> str:
    """Return the reason in Java's output why it did not start, as one line; empty if there is none."""
    lines = [line.strip() for line in log.splitlines()]
    reasons = [line for line in lines if line and not line.startswith(_NOISE)]
    return "; ".join(reasons[:MAX_REASON_LINES])[:MAX_REASON_CHARACTERS]
