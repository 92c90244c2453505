"""Expect an error that names the wrong argument, with any further text."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(argument: str) -> Iterator[pytest.ExceptionInfo[ValueError]]:
    """Expect a `ValueError` whose message begins with the argument, or with those that must fit together."""
    with pytest.raises(ValueError, match=rf"^(\w+, )?{re.escape(argument)}(, \w+)?: .") as raised:
        yield raised
