"""Adapters: the only modules that know a database, besides `freshq.matching.stores`."""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
