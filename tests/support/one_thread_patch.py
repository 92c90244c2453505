"""Replace something of the process for one thread only: other threads keep the real one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock


def confined(replacement: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is the replacement in this thread, and the real one in every other.

    A worker of another test, or a thread that outlives its test, would wait indefinitely if a test's clock
    stood still for it.
    """
    here = threading.get_ident()

    def call(*arguments: Any, **named: Any) -> Any:
        chosen = replacement if threading.get_ident() == here else real
        return chosen(*arguments, **named)

    return call


def patched_here(owner: Any, name: str, replacement: Callable[..., Any]) -> Any:
    """Return a patch of an attribute, such as `time.monotonic`, that only this thread sees."""
    return mock.patch.object(owner, name, confined(replacement, getattr(owner, name)))


class Confined:
    """A module with replacements for this thread; other threads see the module itself."""

    def __init__(self, module: Any, **replacements: Callable[..., Any]) -> None:
        self._module, self._replacements, self._here = module, replacements, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self._here and name in self._replacements:
            return self._replacements[name]
        return getattr(self._module, name)
