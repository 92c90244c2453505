"""The end of the demonstration: the data pipeline over what was archived, held against what was seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import boto3

from freshq_pipeline.cluster.pull import pull
from local.emulator import end_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from local.emulator import Emulator
    from local.history import Change

# The archive's function is called with batches of the stream, some seconds after the changes.
PATIENCE_SECONDS: Final = 90.0
LOOK_SECONDS: Final = 1.0
PIPELINE_SECONDS: Final = 300.0
FATES: Final = ("success", "failure", "cancelled", "shed", "pending", "taken")


class PipelineRunError(RuntimeError):
    """The pipeline did not run, or found something else than the demonstration."""


def count_tasks_changes(changes: Iterable[Change]) -> int:
    """Return how many changes were of tasks: what the archive has to have."""
    return sum(change.task_before() is not None or change.task_after() is not None for change in changes)


def fetch_archive(emulator: Emulator, bucket: str, events: int, folder: Path) -> None:
    """Copy the archived events to a folder, once all are there.

    Args:
        emulator: Where the bucket is.
        bucket: Its name.
        events: How many there have to be.
        folder: Emptied first.

    Raises:
        PipelineRunError: If they did not arrive in time.
    """
    shutil.rmtree(folder, ignore_errors=True)
    client = boto3.client("s3", **emulator.connection)
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = 0
    while found < events:
        if time.monotonic() > deadline:
            msg = f"{found} of {events} events were archived within {PATIENCE_SECONDS:g} s"
            raise PipelineRunError(msg)
        time.sleep(LOOK_SECONDS)
        pull(bucket, folder, client)
        found = len(_event_ids(folder))


def _event_ids(folder: Path) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
    return {json.loads(line)["event_id"] for line in lines}


def run_pipeline(events: Path, out: Path, as_of_ms: int) -> dict[str, Any]:
    """Run the pipeline anew over a folder of landed events, and return its summary.

    Raises:
        PipelineRunError: If it failed; the message is the pipeline's own.
    """
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--json", "--index-lag-seconds", "1"]
    command += ["--events", str(events), "--out", str(out), "--as-of", str(as_of_ms)]
    process = subprocess.Popen(  # noqa: S603 - this interpreter, this project's module
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=PIPELINE_SECONDS)
    except subprocess.TimeoutExpired as error:
        msg = f"the pipeline took longer than {PIPELINE_SECONDS:g} s"
        raise PipelineRunError(msg) from error
    finally:
        end_group(process)  # type: ignore[arg-type]  # of text here, of bytes there: it reads neither
    if process.returncode != 0:
        msg = f"the pipeline failed with status {process.returncode}: {errors.strip()[-500:]}"
        raise PipelineRunError(msg)
    summary: dict[str, Any] = json.loads(output)
    return summary


def compare_with_pipeline(seen: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Hold the pipeline's ledger against what the demonstration itself counted.

    Raises:
        PipelineRunError: If they differ.
    """
    differences = [
        f"{fate}: {seen[fate]} seen, {facts[fate]} found" for fate in FATES if seen[fate] != facts[fate]
    ]
    if facts["tasks"] != seen["created"]:
        differences.append(f"created: {seen['created']} seen, {facts['tasks']} found")
    if facts["ledger_violations"]:
        differences.append(f"{facts['ledger_violations']} tasks break the ledger")
    if differences:
        raise PipelineRunError("the pipeline disagrees with the demonstration: " + "; ".join(differences))
