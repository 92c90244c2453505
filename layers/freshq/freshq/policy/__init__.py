"""Pure policy: no clock, no randomness, no database. Time, counters and random numbers are arguments."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
