"""Copies the landed events of a deployed stack to a folder, for a run on this machine."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from freshq_pipeline.cluster.stacks import outputs_of, unreachable
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_s3 import S3Client

# Where the template's delivery stream puts events, and the stack's output that names the bucket.
PREFIX: Final = "events/"
OUTPUT: Final = "ArchiveBucketName"
THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Landed:
    """One object of the archive.

    Attributes:
        key: Its name in the bucket.
        size_bytes: Its size.
    """

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did.

    Attributes:
        copied: Objects that were copied.
        copied_bytes: Their size.
        known: Objects that were there already.
    """

    copied: int
    copied_bytes: int
    known: int


def bucket_of(stack: str, client: CloudFormationClient | None = None) -> str:
    """Return the archive's bucket of a deployed stack.

    Raises:
        BadInput: If there is no such stack, or it keeps no archive.
        PipelineError: If AWS did not answer.
    """
    bucket = outputs_of(stack, client).get(OUTPUT)
    if bucket is not None:
        return bucket
    msg = f"stack: {stack!r} keeps no archive; deploy it with --parameter-overrides Archive=on"
    raise BadInput(msg)


def pull(
    bucket: str, out: Path, client: S3Client | None = None, progress: Callable[[int, int], None] | None = None
) -> Pulled:
    """Copy what is in the archive and not yet in the folder; may be stopped and repeated.

    Args:
        bucket: Name of the bucket.
        out: The folder; made if it is not there.
        client: A boto3 client; None for one from the environment.
        progress: Is told how many bytes are copied, out of how many.

    Raises:
        PipelineError: If AWS did not answer. What was copied stays, and is not copied again.
    """
    try:
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
    except (BotoCoreError, ClientError) as error:
        raise unreachable(error) from error
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
    """Return whether an object was copied whole: objects of the archive never change."""
    target = _target(out, landed)
    return target.is_file() and target.stat().st_size == landed.size_bytes


def _copy(client: S3Client, bucket: str, landed: Landed, out: Path) -> int:
    """Copy one object, so that it is there whole or not at all."""
    target = _target(out, landed)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        body = client.get_object(Bucket=bucket, Key=landed.key)["Body"]
        with draft.open("wb") as file:
            for chunk in body.iter_chunks():
                file.write(chunk)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return landed.size_bytes
