"""Sources of tasks: the relay of an outbox, and schedules."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
