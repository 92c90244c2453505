"""Timeouts of tests for events that must happen."""

from typing import Final

# Nothing takes as long, unless it never happens: a busy machine may stall a thread for many seconds.
PATIENCE_SECONDS: Final = 60.0
