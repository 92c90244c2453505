"""`pull`: copy the landed events of a deployed stack to a folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config
from rich.progress import DownloadColumn

from freshq_pipeline.cluster.stacks import aws_errors, in_region, outputs_of
from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_s3 import S3Client
    from rich.progress import Progress


# The delivery stream's prefix in the template, and the stack's output that names the bucket.
PREFIX: Final = "events/"
OUTPUT: Final = "ArchiveBucketName"
THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull.

    Attributes:
        copied: Number of objects that were copied.
        copied_bytes: Their size.
        known: Number of objects that the folder already had.
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
    bucket: str,
    out: Path,
    client: S3Client | None = None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Pulled:
    """Copy the objects of the archive that the folder lacks; may be interrupted and repeated.

    Args:
        bucket: Name of the bucket.
        out: The folder; created if needed.
        client: A boto3 client; None for one from the environment.
        progress: Called with the bytes copied so far and their total.

    Raises:
        BadInput: If a key names a file outside the folder; nothing was copied.
        PipelineError: If a call to AWS failed. The next pull copies the rest.
    """
    with aws_errors():
        s3 = client or boto3.client("s3", config=Config(max_pool_connections=THREADS), **in_region())
        sizes_bytes = _landed(s3, bucket)
        targets = {key: _target(out, key) for key in sizes_bytes}
        # Objects of the archive never change.
        missing = [key for key, target in targets.items() if _size_of(target) != sizes_bytes[key]]
        total_bytes = sum(sizes_bytes[key] for key in missing)
        copied_bytes = 0
        with ThreadPoolExecutor(THREADS, thread_name_prefix="pull") as pool:
            copies = pool.map(lambda key: _copy(s3, bucket, key, targets[key]), missing)
            for key, _ in zip(missing, copies, strict=True):
                copied_bytes += sizes_bytes[key]
                progress(copied_bytes, total_bytes)
    return Pulled(len(missing), copied_bytes, len(sizes_bytes) - len(missing))


def _landed(client: S3Client, bucket: str) -> dict[str, int]:
    """Return the sizes of the objects in the archive, by key."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=PREFIX)
    return {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", [])}


def _target(out: Path, key: str) -> Path:
    """Return the file of an object in the folder."""
    target = out / key.removeprefix(PREFIX)
    if target.resolve().is_relative_to(out.resolve()):
        return target
    msg = f"key: {key!r} names a file outside {out}; delete the object, which the archive did not write"
    raise BadInput(msg)


def _size_of(target: Path) -> int | None:
    return target.stat().st_size if target.is_file() else None


def _copy(client: S3Client, bucket: str, key: str, target: Path) -> None:
    body = client.get_object(Bucket=bucket, Key=key)["Body"]
    with whole_file(target) as file:
        for chunk in body.iter_chunks():
            file.write(chunk)


def from_stack(stack: str, out: Path, bar: Progress) -> str:
    """Copy the archive of a stack; return a message about the copies."""
    bucket = bucket_of(stack)
    bar.columns = (*bar.columns, DownloadColumn())
    task = bar.add_task("copying", total=None)
    pulled = pull(bucket, out, progress=lambda done, of: bar.update(task, completed=done, total=of))
    bar.update(task, total=pulled.copied_bytes, completed=pulled.copied_bytes)
    return f"{pulled.copied} files copied to {out}, {pulled.known} already there"
