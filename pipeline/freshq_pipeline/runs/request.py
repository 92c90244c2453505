"""What a run reads, where it writes, and its options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import check_no_pattern
from freshq_pipeline.storage.days import check_days, number
from freshq_pipeline.storage.recording import IndexLag, recorded_index_lag
from freshq_pipeline.storage.registration import CatalogName

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

_NAMESPACE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
# The options that change the tables; the next run needs them to know whether it must compute anything. (What
# lag was used is kept apart: it also comes from the sources.)
_OF_TABLES: Final = ("as_of_ms", "index_lag_seconds", "other_order")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run, validated on construction.

    Attributes:
        form: Format of the files.
        as_of_ms: Epoch milliseconds at which outcomes are determined; None: the time of the newest event.
        max_reject_ratio: Share of the records that may be unusable.
        keep_runs: How many runs to keep; at least 2 if others read the tables while runs end.
        index_lag_seconds: Time after which a new task must be visible to claims; None: by source, 0 for
            histories of SQL and a second for DynamoDB.
        other_order: Queues that are not served newest first, separated by commas: they have no inversions.
        full_refresh: Whether to ignore earlier runs and read everything again.
        iceberg: Catalog and namespace of Spark, joined by a dot, to copy the tables to; None: no copy.
        catalog: Catalog of PyIceberg to register the tables in, NAME or NAME.NAMESPACE; None: where they are
            registered already, if anywhere.
        keep_silver_days: How long to keep the events of tasks that are over; None: for ever. Later events of
            these tasks are counted as too late.
        since: First day (YYYY-MM-DD, UTC) whose tables to compute again from silver; None: from the first.
        until: Last such day; None: to the last. Without both, only days that changed are computed.
    """

    form: Format = Format.LANDED
    as_of_ms: int | None = None
    max_reject_ratio: float = 0.2
    keep_runs: int = 5
    index_lag_seconds: float | None = None
    other_order: str | None = None
    full_refresh: bool = False
    iceberg: str | None = None
    catalog: str | None = None
    keep_silver_days: int | None = None
    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If a value is out of range.
        """
        if not 0 <= self.max_reject_ratio <= 1:
            msg = f"max-reject-ratio: must be from 0 to 1, got {self.max_reject_ratio:g}"
            raise BadInput(msg)
        if self.keep_runs < 1:
            msg = f"keep-runs: must be 1 or more, got {self.keep_runs}"
            raise BadInput(msg)
        if self.iceberg is not None and not _NAMESPACE.fullmatch(self.iceberg):
            msg = f"iceberg: must be CATALOG.NAMESPACE, got {self.iceberg!r}"
            raise BadInput(msg)
        if self.catalog is not None:
            CatalogName.parse(self.catalog)
        self._check_tables()
        self._check_days()

    def _check_tables(self) -> None:
        if self.as_of_ms is not None and self.as_of_ms <= 0:
            msg = f"as-of: must be milliseconds since the Unix epoch, got {self.as_of_ms}"
            raise BadInput(msg)
        if self.index_lag_seconds is not None and not 0 <= self.index_lag_seconds < float("inf"):
            msg = f"index-lag-seconds: must be 0 or more, got {self.index_lag_seconds:g}"
            raise BadInput(msg)
        if self.other_order is not None and not all(self.other_order.split(",")):
            msg = f"other-order: must be names of queues, separated by commas, got {self.other_order!r}"
            raise BadInput(msg)

    def _check_days(self) -> None:
        if self.keep_silver_days is not None and self.keep_silver_days < 1:
            msg = f"keep-silver-days: must be 1 or more, got {self.keep_silver_days}"
            raise BadInput(msg)
        check_days(self.since, self.until)

    def other_orders(self) -> frozenset[str]:
        """Return the names of the queues that are not served newest first."""
        return frozenset() if self.other_order is None else frozenset(self.other_order.split(","))

    def again(self) -> bool:
        """Return whether days are to be computed again, whatever changed."""
        return self.since is not None or self.until is not None

    def again_on(self, day: int) -> bool:
        """Return whether a day is to be computed again, given its number."""
        first = day if self.since is None else number(self.since)
        last = day if self.until is None else number(self.until)
        return self.again() and first <= day <= last

    def of_tables(self) -> dict[str, Any]:
        """Return the options that change the tables, by name."""
        return {name: getattr(self, name) for name in _OF_TABLES}


def _is_within(one: Folder, other: Folder) -> bool:
    """Return whether a folder is another one, or below it, also by a symbolic link or another spelling."""
    from freshq_pipeline.storage.addresses import normalized

    paths = [folder.on_disk("") for folder in (one, other)]
    inner, outer = (
        normalized(folder.uri if path is None else os.path.realpath(path))
        for folder, path in zip((one, other), paths, strict=True)
    )
    return f"{inner}/".startswith(f"{outer}/")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run.

    Attributes:
        events: Folder with the files to read.
        out: Folder for the output.
        options: Options of the run.
    """

    events: Folder
    out: Folder
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If Spark would take an address for a pattern, the output is a file, or one folder is in
                the other.
        """
        check_no_pattern("events", self.events.uri)
        check_no_pattern("out", self.out.uri)
        on_disk = self.out.on_disk("")
        if on_disk is not None and on_disk.is_file():
            msg = f"out: {on_disk} is a file; name a folder"
            raise BadInput(msg)
        self.check_beside_events("out", self.out)

    def check_beside_events(self, name: str, folder: Folder) -> None:
        """Check that a folder and the events are beside each other: files in it would be read as events.

        Args:
            name: What the option is called.
            folder: The folder.

        Raises:
            BadInput: If one is in the other.
        """
        if _is_within(folder, self.events) or _is_within(self.events, folder):
            msg = f"{name}: {folder.uri} and the events in {self.events.uri} need folders beside each other, "
            msg += "neither in the other"
            raise BadInput(msg)

    def index_lag(self) -> IndexLag:
        """Return the index lag that was given, otherwise that of the sources of the events.

        Raises:
            BadInput: If the events have an invalid recording file.
        """
        given = self.options.index_lag_seconds
        return recorded_index_lag(self.events) if given is None else IndexLag(given)
