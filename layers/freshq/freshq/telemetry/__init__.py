"""Reports of verbs and runs: spans, OpenTelemetry, and the fields of log records."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
