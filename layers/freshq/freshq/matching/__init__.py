"""Matching callers with resources, and the stores of resources."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
