"""The last step of the demonstration: run the data pipeline on the archive, and compare its counts."""

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

# The archive receives batches of the stream some seconds after the changes.
ARRIVAL_SECONDS: Final = 90.0
POLL_SECONDS: Final = 1.0
PIPELINE_SECONDS: Final = 300.0
FATES: Final = ("success", "failure", "cancelled", "shed", "pending", "taken")


class PipelineRunError(RuntimeError):
    """The pipeline failed, or its counts differ from the demonstration's."""


def count_tasks_changes(changes: Iterable[Change]) -> int:
    """Return the number of changes to tasks, which is the number of events in the archive."""
    return sum(change.task_before() is not None or change.task_after() is not None for change in changes)


def fetch_archive(emulator: Emulator, bucket: str, events: int, folder: Path) -> None:
    """Wait until all events are archived, and copy them to a folder.

    Args:
        emulator: Emulator with the bucket.
        bucket: Name of the bucket.
        events: Number of events to wait for.
        folder: Target folder, emptied first.

    Raises:
        PipelineRunError: If the events did not arrive in time.
    """
    shutil.rmtree(folder, ignore_errors=True)
    client = boto3.client("s3", **emulator.connection)
    deadline = time.monotonic() + ARRIVAL_SECONDS
    found = 0
    while found < events:
        if time.monotonic() > deadline:
            msg = f"{found} of {events} events were archived within {ARRIVAL_SECONDS:g} s"
            raise PipelineRunError(msg)
        time.sleep(POLL_SECONDS)
        pull(bucket, folder, client)
        found = len(_event_ids(folder))


def _event_ids(folder: Path) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
    return {json.loads(line)["event_id"] for line in lines}


def run_pipeline(events: Path, out: Path, as_of_ms: int) -> dict[str, Any]:
    """Run the pipeline on a folder of landed events, and return its summary.

    Raises:
        PipelineRunError: If it failed; the message has the pipeline's error.
    """
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--json"]
    command += ["--events", str(events), "--out", str(out), "--as-of", str(as_of_ms)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=PIPELINE_SECONDS)
    except subprocess.TimeoutExpired as error:
        msg = f"the pipeline took longer than {PIPELINE_SECONDS:g} s"
        raise PipelineRunError(msg) from error
    finally:
        end_group(process)  # type: ignore[arg-type]  # text instead of bytes, but it reads neither
    if process.returncode != 0:
        msg = f"the pipeline failed with status {process.returncode}: {errors.strip()[-500:]}"
        raise PipelineRunError(msg)
    summary: dict[str, Any] = json.loads(output)
    return summary


def compare_with_pipeline(seen: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Compare the pipeline's ledger with the counts of the demonstration.

    Raises:
        PipelineRunError: If they differ.
    """
    differences = [
        f"{fate}: {seen[fate]} seen, {facts[fate]} found" for fate in FATES if seen[fate] != facts[fate]
    ]
    if facts["tasks"] != seen["created"]:
        differences.append(f"created: {seen['created']} seen, {facts['tasks']} found")
    if facts["ledger_violations"]:
        differences.append(f"{facts['ledger_violations']} ledger violations")
    if differences:
        raise PipelineRunError("the pipeline disagrees with the demonstration: " + "; ".join(differences))
