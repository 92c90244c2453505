"""The queue: its verbs, on any store, and the state that its processes share."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
