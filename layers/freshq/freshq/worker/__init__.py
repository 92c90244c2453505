"""The worker: claims tasks, runs them and settles them."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
