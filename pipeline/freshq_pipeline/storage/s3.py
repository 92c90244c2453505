"""Where PyArrow looks for a bucket."""

from __future__ import annotations

import os

from freshq_pipeline.spark.session import submitted


def located(address: str) -> str:
    """Return an address as PyArrow takes it.

    PyArrow asks S3 in North Virginia which region a bucket is in. A job of EMR Serverless without a network
    of its own reaches its own region only; there the region is taken from AWS_REGION instead.
    """
    address = address.replace("s3a://", "s3://", 1)
    region = os.environ.get("AWS_REGION")
    if not region or not submitted() or not address.startswith("s3://"):
        return address
    return f"{address}?region={region}"
