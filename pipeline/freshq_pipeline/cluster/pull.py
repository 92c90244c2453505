"""`pull`: copy the landed events of a deployed stack to a folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config
from rich.progress import DownloadColumn

from freshq_pipeline.cluster.stacks import aws_errors, outputs_of
from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_s3 import S3Client
    from rich.progress import Progress


# Prefix of the delivery stream in the template, and the output of the stack with the bucket.
PREFIX: Final = "events/"
OUTPUT: Final = "ArchiveBucketName"
THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Landed:
    """An object of the archive.

    Attributes:
        key: Key in the bucket.
        size_bytes: Size.
    """

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull.

    Attributes:
        copied: Objects that were copied.
        copied_bytes: Their size.
        known: Objects that the folder already had.
    """

    copied: int
    copied_bytes: int
    known: int


def bucket_of(stack: str, client: CloudFormationClient | None = None) -> str:
    """Return the bucket with the archive of a deployed stack.

    Raises:
        BadInput: If the stack does not exist or has no archive.
        PipelineError: If a call to AWS failed.
    """
    bucket = outputs_of(stack, client).get(OUTPUT)
    if bucket is not None:
        return bucket
    msg = f"stack: {stack!r} has no archive; deploy it with --parameter-overrides Archive=on"
    raise BadInput(msg)


def pull(
    bucket: str, out: Path, client: S3Client | None = None, progress: Callable[[int, int], None] | None = None
) -> Pulled:
    """Copy the objects of the archive that the folder lacks; may be stopped and repeated.

    Args:
        bucket: Name of the bucket.
        out: The folder; created if needed.
        client: A boto3 client; None for one from the environment.
        progress: Called with the bytes copied so far and their total.

    Raises:
        PipelineError: If a call to AWS failed. The next pull copies the rest.
    """
    with aws_errors():
        s3 = _s3() if client is None else client
        landed = _landed(s3, bucket)
        missing = [one for one in landed if not _is_there(out, one)]
        total_bytes = sum(one.size_bytes for one in missing)
        copied_bytes = 0
        with ThreadPoolExecutor(THREADS, thread_name_prefix="pull") as pool:
            for size_bytes in pool.map(lambda one: _copy(s3, bucket, one, out), missing):
                copied_bytes += size_bytes
                if progress is not None:
                    progress(copied_bytes, total_bytes)
    return Pulled(len(missing), copied_bytes, len(landed) - len(missing))


def _s3() -> S3Client:
    client: S3Client = boto3.client("s3", config=Config(max_pool_connections=THREADS))
    return client


def _landed(client: S3Client, bucket: str) -> list[Landed]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=PREFIX)
    return [Landed(entry["Key"], entry["Size"]) for page in pages for entry in page.get("Contents", [])]


def _target(out: Path, landed: Landed) -> Path:
    return out / landed.key.removeprefix(PREFIX)


def _is_there(out: Path, landed: Landed) -> bool:
    """Return whether an object was copied; objects of the archive never change."""
    target = _target(out, landed)
    return target.is_file() and target.stat().st_size == landed.size_bytes


def _copy(client: S3Client, bucket: str, landed: Landed, out: Path) -> int:
    body = client.get_object(Bucket=bucket, Key=landed.key)["Body"]
    with whole_file(_target(out, landed)) as file:
        for chunk in body.iter_chunks():
            file.write(chunk)
    return landed.size_bytes


def from_stack(stack: str, out: Path, bar: Progress) -> str:
    """Copy the archive of a stack; return what was done."""
    from freshq_pipeline.cluster.pull import bucket_of  # noqa: PLC0415 - boto3, which other sources do not need
    from freshq_pipeline.cluster.pull import pull as copy  # noqa: PLC0415 - likewise

    bucket = bucket_of(stack)
    bar.columns = (*bar.columns, DownloadColumn())
    task = bar.add_task("copying", total=None)
    pulled = copy(bucket, out, progress=lambda done, of: bar.update(task, completed=done, total=of))
    bar.update(task, total=pulled.copied_bytes, completed=pulled.copied_bytes)
    return f"{pulled.copied} files copied to {out}, {pulled.known} already there"
