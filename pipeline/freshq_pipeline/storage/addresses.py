"""Addresses of files in the forms that Spark and PyArrow expect. Imports neither, so that `--help` works."""

from __future__ import annotations

import os
import re
from typing import Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.spark.java import submitted


def for_pyarrow(address: str) -> str:
    """Return an address in PyArrow's form.

    PyArrow asks S3 in North Virginia for the region of a bucket. A job of EMR Serverless without its own
    network reaches only its own region, so there the region comes from AWS_REGION.
    """
    address = address.replace("s3a://", "s3://", 1)
    region = os.environ.get("AWS_REGION")
    if not region or not submitted() or not address.startswith("s3://"):
        return address
    return f"{address}?region={region}"


def normalized(address: str) -> str:
    """Return the canonical spelling of an address, so that equal files have equal addresses."""
    return re.sub("/+", "/", address.removeprefix("file:").replace("s3a:", "s3:", 1))


# Spark reads an address with one of these characters as a glob pattern.
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")


def check_no_pattern(name: str, address: str) -> None:
    """Check that Spark takes an address literally.

    Args:
        name: Name of the option, for the error.
        address: The address.

    Raises:
        BadInput: If it contains a character of glob patterns.
    """
    found = _PATTERN.search(address)
    if found is not None:
        msg = f"{name}: {address} has {found.group()!r}, which Spark takes for a pattern; rename it"
        raise BadInput(msg)
