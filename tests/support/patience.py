"""Timeouts of tests for events that must happen."""

from typing import Final

# If shorter, a busy machine, which may stall a thread for many seconds, would fail tests.
PATIENCE_SECONDS: Final = 60.0
