"""The events of OpenLineage, and the client that sends them."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from openlineage.client import OpenLineageClient, set_producer
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    documentation_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport
from requests import RequestException

from freshq_pipeline.errors import cause
from freshq_pipeline.report.contract import contract, described
from freshq_pipeline.report.lineage import setting_of_client
from freshq_pipeline.storage.table_files import PUBLISHED

if TYPE_CHECKING:
    from openlineage.client.transport import Transport

    from freshq_pipeline.report.lineage import Moment
    from freshq_pipeline.storage.folder import Folder


PRODUCER: Final = "https://pypi.org/project/freshq"
ENDPOINT: Final = "api/v1/lineage"
# Namespace of the jobs, unless the client's setting names another.
NAMESPACE: Final = "freshq"
_STREAM: Final = "stream"


def open_client(target: str | None) -> OpenLineageClient:
    """Return a client.

    Args:
        target: Address or file that receives the events; None: the client's own settings name it.

    Raises:
        ValueError: If these settings name no receiver that works.
    """
    set_producer(PRODUCER)
    if target is not None:
        return OpenLineageClient(transport=_transport(target))
    client = OpenLineageClient()
    # What the client uses if it cannot read its settings.
    if client.transport.kind == "console" and (client.config.transport or {}).get("type") != "console":
        msg = f"{setting_of_client()} names no receiver"
        raise ValueError(msg)
    return client


def _transport(target: str) -> Transport:
    """Return what appends events to a file, one a line, or sends them to an address, with the client's key.

    An address without a path gets the usual one.
    """
    if "://" not in target:
        return FileTransport(FileConfig(str(Path(target).absolute()), append=True))
    parts = urlsplit(target)
    root = urlunsplit((parts.scheme, parts.netloc, "/", "", ""))
    endpoint = urlunsplit(("", "", parts.path.lstrip("/") or ENDPOINT, parts.query, ""))
    key = os.environ.get("OPENLINEAGE_API_KEY")
    auth = {"auth": {"type": "api_key", "apiKey": key}} if key else {}
    return HttpTransport(HttpConfig.from_dict({"url": root, "endpoint": endpoint, **auth}))


def without_address(error: Exception) -> str:
    """Return why an event was not sent, without the address, which may have a password or a key."""
    if not isinstance(error, RequestException):
        return cause(error)
    status = "" if error.response is None else f", status {error.response.status_code}"
    return f"{type(error).__name__}{status}"


def event_of(moment: Moment) -> RunEvent:
    """Return the event of a moment of a command."""
    return RunEvent(
        eventTime=moment.at,
        eventType=RunState(moment.kind),
        run=_run(moment),
        job=_job(moment),
        inputs=[_input(moment)],
        outputs=_outputs(moment),
    )


def _run(moment: Moment) -> Run:
    engine = processing_engine_run.ProcessingEngineRunFacet(version("pyspark"), "spark", version("freshq"))
    facets: dict[str, Any] = {"processing_engine": engine}
    if isinstance(moment.error, Exception):
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(cause(moment.error), "PYTHON")
    return Run(moment.run_id, facets)


def _job(moment: Moment) -> Job:
    """Return the job: the same for each run of a command into an output folder."""
    namespace, name = _dataset(moment.out)
    place = re.sub(r"[^\w.-]+", "_", name if namespace == "file" else f"{namespace}/{name}").strip("_")
    processing = "STREAMING" if moment.command == _STREAM else "BATCH"
    facets: dict[str, Any] = {
        "jobType": job_type_job.JobTypeJobFacet(processing, "FRESHQ", moment.command.upper())
    }
    in_namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE
    return Job(in_namespace, f"freshq-pipeline.{moment.command}.{place}", facets)


def _dataset(folder: Folder, path: str = "") -> tuple[str, str]:
    """Return the namespace and the name of a folder, as OpenLineage names them."""
    on_disk = folder.on_disk(path)
    if on_disk is not None:
        return "file", str(on_disk)
    bucket, _, key = folder.at(path).partition("://")[2].partition("/")
    return f"s3://{bucket}", key.rstrip("/") or "/"


def _input(moment: Moment) -> InputDataset:
    facets: dict[str, Any] = {}
    if (summary := moment.summary) is not None:
        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=summary["events_read"], fileCount=summary["files_read"]
        )
        facets["inputStatistics"] = read
    return InputDataset(*_dataset(moment.events), inputFacets=facets)


def _outputs(moment: Moment) -> list[OutputDataset]:
    """Return the tables with their columns and, once they are published, the run that made them."""
    run: dict[str, Any] = {}
    if moment.summary is not None:
        run["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(moment.summary["run_id"])
    found = []
    for table in contract()["schema"]:
        text = documentation_dataset.DocumentationDatasetFacet(table["description"])
        columns = schema_dataset.SchemaDatasetFacet(_fields(table["properties"]))
        facets = run | {"schema": columns, "documentation": text}
        found.append(OutputDataset(*_dataset(moment.out, f"{PUBLISHED}/{table['name']}"), facets=facets))
    return found


def _fields(columns: list[dict[str, Any]]) -> list[Any]:
    """Return columns of the contract as fields, with the fields of structures in lists."""
    return [
        schema_dataset.SchemaDatasetFacetFields(
            column["name"], column["physicalType"], described(column), place,
            _fields(column.get("items", {}).get("properties", [])),
        )
        for place, column in enumerate(columns, 1)
    ]  # fmt: skip
