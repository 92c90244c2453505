"""Addresses that Spark would take for patterns. Needs no Spark, so that `--help` does not."""

from __future__ import annotations

import re
from typing import Final

from freshq_pipeline.errors import BadInput

# Spark takes an address with one of these for a pattern.
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")


def check_no_pattern(name: str, address: str) -> None:
    """Check that Spark takes an address as it is.

    Args:
        name: What the address is of, for the error.
        address: The address.

    Raises:
        BadInput: If it has a character of patterns.
    """
    found = _PATTERN.search(address)
    if found is not None:
        msg = f"{name}: {address} has {found.group()!r}, which Spark takes for a pattern; rename it"
        raise BadInput(msg)
