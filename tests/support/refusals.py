"""Expect that a wrong argument is refused by its name, whatever else the message says."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def refused(argument: str) -> Iterator[None]:
    """Expect a `ValueError` whose message begins with the argument, or with those that must fit together."""
    with pytest.raises(ValueError, match=rf"^(\w+, )?{re.escape(argument)}(, \w+)?: ."):
        yield
