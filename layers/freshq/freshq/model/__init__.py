"""Tasks: their statuses and options, and the effect of each verb on them. No I/O."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
