"""Addresses of files, as Spark and PyArrow expect them."""

from __future__ import annotations

import os
import re

from freshq_pipeline.spark.session import submitted


def for_pyarrow(address: str) -> str:
    """Return an address in the form that PyArrow expects.

    PyArrow asks S3 in North Virginia for the region of a bucket. A job of EMR Serverless without a network of
    its own reaches only its own region, so there the region comes from AWS_REGION.
    """
    address = address.replace("s3a://", "s3://", 1)
    region = os.environ.get("AWS_REGION")
    if not region or not submitted() or not address.startswith("s3://"):
        return address
    return f"{address}?region={region}"


def normalized(address: str) -> str:
    """Return an address such that two spellings of the same file are equal."""
    return re.sub("/+", "/", address.removeprefix("file:").replace("s3a:", "s3:", 1))
