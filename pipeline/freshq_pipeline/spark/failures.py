"""Reduce errors of Spark and Java to one line."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
# Java's messages are long; the beginning names the cause.
MAX_REASON_CHARACTERS: Final = 300
MAX_REASON_LINES: Final = 2
# Start of a line that names an exception.
_EXCEPTION: Final = re.compile(
    r"Caused by: |Exception in |(?!Error\b|Exception\b)([\w$]+\.)*[\w$]*(Exception|Error|Throwable)(:|$)"
)
# The form in which Spark names the file or folder of a failed task.
_OF_FILE: Final = re.compile(
    r"while (reading|writing)(?: file| rows to) (.+?)\.?\s*(?:SQLSTATE.*)?$", re.MULTILINE
)
_CAUSE: Final = "Caused by: "
# Starts of lines about errors by Java, Spark's scripts, a shell or the loader of libraries.
_ERROR: Final = re.compile(
    r"Error|ERROR|FATAL|Invalid|Unrecognized|Failed|Could not|There is insufficient|java:|env:|/|"
    r"\S+: line \d+:"
)
# Lines that say nothing about an error.
_NOISE: Final = re.compile(
    r"(at |\.\.\. \d+ more|WARNING:|Picked up |NOTE: |Using Spark's default|Setting default log level|"
    r"To adjust logging level|Using incubator modules|freshq-pipeline: |\S* ?VM warning:|"
    r"\[[\d.]+s\]\[|(\S+ \S+ )?(WARN|INFO|DEBUG)\b)"
)


def innermost_cause(error: BaseException) -> str:
    """Return the innermost cause of a Java stack trace as one line, with the file that an outer one names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    causes = [line for line in lines if _CAUSE in line or line.startswith("java.")]
    reason = (causes[-1].rpartition(_CAUSE)[2] if causes else lines[0])[:MAX_REASON_CHARACTERS]
    of_files = _OF_FILE.search("\n".join(lines))
    if of_files is None or of_files[2] in reason:
        return reason
    return f"{reason} (while {of_files[1]} {of_files[2]})"


def start_failure(log: str) -> str:
    """Return the reason in Java's output for a failed start, as one line; empty if there is none.

    It is the last cause of an exception, or else the first line about an error with the next one.
    """
    lines = (line.strip("# \t") for line in log.splitlines())
    told = [line for line in lines if line and not _NOISE.match(line)]
    return "; ".join(_thrown(told) or _first_error(told))[:MAX_REASON_CHARACTERS]


def _thrown(lines: list[str]) -> list[str]:
    """Return the last cause of an exception, or else the first exception."""
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    causes = [line.removeprefix(_CAUSE) for line in exceptions if line.startswith(_CAUSE)]
    return causes[-1:] or exceptions[:1]


def _first_error(lines: list[str]) -> list[str]:
    first = next((place for place, line in enumerate(lines) if _ERROR.match(line)), 0)
    return lines[first : first + MAX_REASON_LINES]


def is_of_connection(error: BaseException) -> bool:
    """Return whether an error may mean that Java is gone, not that a call failed."""
    return isinstance(error, (Py4JError, ConnectionError, EOFError)) and not isinstance(error, Py4JJavaError)
