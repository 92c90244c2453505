"""Upload the package that `make pipeline-package` makes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError

from freshq_pipeline.cluster.stacks import aws_errors, error_code
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

ENTRY_POINT: Final = "main.py"
ARCHIVE: Final = "environment.tar.gz"
DESCRIPTION: Final = "package.json"
# Folder of the bucket.
JOB: Final = "job"
# In the description, and in the metadata of an uploaded file.
DIGEST: Final = "sha256"


def upload(
    bucket: str,
    package: Path,
    client: S3Client,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[str]:
    """Upload the files of a package that are missing or different, and return their names.

    Args:
        bucket: Bucket of the pipeline.
        package: Folder with the package.
        client: A client of S3.
        progress: Called with the bytes copied so far and their total.

    Raises:
        BadInput: If there is no package.
        PipelineError: If a call to AWS failed.
    """
    try:
        digests: dict[str, str] = json.loads((package / DESCRIPTION).read_text("utf-8"))[DIGEST]
    except (OSError, ValueError, KeyError) as error:
        msg = f"package: no package in {package}; make it: make pipeline-package"
        raise BadInput(msg) from error
    with aws_errors():
        stale = [name for name in (ENTRY_POINT, ARCHIVE) if _digest_of(client, bucket, name) != digests[name]]
        total_bytes = sum((package / name).stat().st_size for name in stale)
        copied_bytes = 0

        def copied(more_bytes: int) -> None:
            nonlocal copied_bytes
            copied_bytes += more_bytes
            progress(copied_bytes, total_bytes)

        for name in stale:
            extra = {"Metadata": {DIGEST: digests[name]}}
            client.upload_file(str(package / name), bucket, f"{JOB}/{name}", ExtraArgs=extra, Callback=copied)
    return stale


def _digest_of(client: S3Client, bucket: str, name: str) -> str | None:
    """Return the digest of an uploaded file, None if it does not exist."""
    try:
        return client.head_object(Bucket=bucket, Key=f"{JOB}/{name}")["Metadata"].get(DIGEST)
    except ClientError as error:
        if error_code(error) in ("404", "NoSuchKey", "NotFound"):
            return None
        raise
