"""The input, output and options of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import check_no_pattern, normalized
from freshq_pipeline.storage.days import check_days, number
from freshq_pipeline.storage.recording import IndexLag, recorded_index_lag
from freshq_pipeline.storage.registration import CatalogName

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

# Options that change the tables. If they differ from the previous run's, all tables are computed again. The
# index lag that was used is stored separately, because it may also come from the sources.
_OF_TABLES: Final = ("as_of_ms", "index_lag_seconds", "other_order")


# From 1973 to 5138. Numbers outside are times in another unit.
AS_OF_MS: Final = range(10**11, 10**14)
_UNITS: Final = {"seconds": (1000, 1), "microseconds": (1, 1000), "nanoseconds": (1, 1_000_000)}


def _as_of_expected(given: int | None) -> str:
    """Return the allowed form of `as_of_ms`, and the value to give instead of a time in another unit."""
    expected = "milliseconds since the Unix epoch"
    for unit, (times, over) in _UNITS.items():
        as_of_ms = (given or 0) * times // over
        if as_of_ms in AS_OF_MS:
            return f"{expected} (if it is in {unit}, give {as_of_ms})"
    return expected


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run, validated on construction.

    Attributes:
        form: Format of the files.
        as_of_ms: Epoch milliseconds at which outcomes are determined; None: the time of the newest event.
        max_reject_ratio: Largest share of records that may be unusable.
        accept_damaged: Whether to publish although files cannot be read to their end.
        keep_runs: Number of runs to keep; at least 2 if others read the tables while runs end.
        index_lag_seconds: Time after which a new task must be visible to claims; None: 0 for histories from
            SQL, 1 for DynamoDB.
        other_order: Queues that are not served newest first, separated by commas; they have no inversions.
        full_refresh: Whether to ignore earlier runs and read everything again.
        catalog: Catalog of PyIceberg to register the tables in, as NAME or NAME.NAMESPACE; None: the catalog
            of earlier runs, if any.
        keep_silver_days: Days to keep the events of completed tasks; None: indefinitely. Later events of
            these tasks are counted as too late.
        since: First day (YYYY-MM-DD, UTC) to compute again from silver; None: the first recorded day.
        until: Last day to compute again; None: the last recorded day. Without `since` and `until`, only
            changed days are computed.
    """

    form: Format = Format.LANDED
    as_of_ms: int | None = None
    max_reject_ratio: float = 0.2
    accept_damaged: bool = False
    keep_runs: int = 5
    index_lag_seconds: float | None = None
    other_order: str | None = None
    full_refresh: bool = False
    catalog: str | None = None
    keep_silver_days: int | None = None
    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If a value is out of range.
        """
        lag, order = self.index_lag_seconds, self.other_order
        as_of_ms, keep_days = self.as_of_ms, self.keep_silver_days
        checks = (
            (0 <= self.max_reject_ratio <= 1, "max-reject-ratio", "from 0 to 1", self.max_reject_ratio),
            (self.keep_runs >= 1, "keep-runs", "1 or more", self.keep_runs),
            (as_of_ms is None or as_of_ms in AS_OF_MS, "as-of", _as_of_expected(as_of_ms), as_of_ms),
            (lag is None or 0 <= lag < float("inf"), "index-lag-seconds", "0 or more", lag),
            (order is None or all(order.split(",")), "other-order", "queues, separated by commas", order),
            (keep_days is None or keep_days >= 1, "keep-silver-days", "1 or more", keep_days),
        )
        for valid, name, expected, given in checks:
            if not valid:
                msg = f"{name}: must be {expected}, got {given!r}"
                raise BadInput(msg)
        if self.catalog is not None:
            CatalogName.parse(self.catalog)
        check_days(self.since, self.until)

    def other_orders(self) -> frozenset[str]:
        """Return the names of the queues that are not served newest first."""
        return frozenset() if self.other_order is None else frozenset(self.other_order.split(","))

    def again(self) -> bool:
        """Return whether to compute the given days even if they are unchanged."""
        return self.since is not None or self.until is not None

    def again_on(self, day: int) -> bool:
        """Return whether to compute a day, given by number, even if it is unchanged."""
        first = day if self.since is None else number(self.since)
        last = day if self.until is None else number(self.until)
        return self.again() and first <= day <= last

    def of_tables(self) -> dict[str, Any]:
        """Return the options that change the tables."""
        return {name: getattr(self, name) for name in _OF_TABLES}


def _is_within(one: Folder, other: Folder) -> bool:
    """Return whether a folder equals another one or lies below it, also through symbolic links."""
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
        out: Output folder.
        options: Options of the run.
    """

    events: Folder
    out: Folder
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If Spark would read an address as a pattern, the output is a file, or one folder is
                inside the other.
        """
        check_no_pattern("events", self.events.uri)
        check_no_pattern("out", self.out.uri)
        on_disk = self.out.on_disk("")
        if on_disk is not None and on_disk.is_file():
            msg = f"out: {on_disk} is a file; name a folder"
            raise BadInput(msg)
        self.check_beside_events("out", self.out)

    def check_beside_events(self, name: str, folder: Folder) -> None:
        """Check that neither a folder nor the events are in the other, where files would be read as events.

        Args:
            name: Name of the option.
            folder: The folder.

        Raises:
            BadInput: If one is inside the other.
        """
        if _is_within(folder, self.events) or _is_within(self.events, folder):
            msg = f"{name}: {folder.uri} and the events in {self.events.uri} need folders beside each other, "
            msg += "neither in the other"
            raise BadInput(msg)

    def index_lag(self) -> IndexLag:
        """Return the index lag from the options, or else from the sources of the events.

        Raises:
            BadInput: If a recording file among the events is invalid.
        """
        given = self.options.index_lag_seconds
        return recorded_index_lag(self.events) if given is None else IndexLag(given)
