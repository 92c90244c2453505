"""The published tables for the report: read batch by batch, whatever their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.report.words import NO_NAME
from freshq_pipeline.schemas import BY_DAY, TABLES
from freshq_pipeline.storage.arrow import arrow_schema, grouped
from freshq_pipeline.storage.table_files import FOLDERS, newest_days, place, published_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from freshq_pipeline.storage.folder import Folder

# Number of days in the charts: the newest ones.
MAX_DAYS: Final = 31
# Number of partial sums to hold before adding them up.
_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a run.

    Attributes:
        out: The output folder.
        run_id: Id of the run.
        queues: Queues in the charts, with `NO_NAME` for no queue.
    """

    out: Folder
    run_id: str
    queues: Sequence[str]

    def newest(self, name: str) -> dict[str, list[str]]:
        """Return the files of a table by day on its newest days."""
        return newest_days(published_paths(self.out, self.run_id, name), MAX_DAYS)

    def dataset(self, name: str, paths: Sequence[str] | None = None) -> Any:
        """Return a table, or the given files of it, as a PyArrow dataset."""
        files = published_paths(self.out, self.run_id, name) if paths is None else paths
        return self.out.dataset(files, place(name), FOLDERS if name in BY_DAY else ())

    def batches(
        self, name: str, paths: Sequence[str], columns: Sequence[str], where: Any = None
    ) -> Iterator[pa.Table]:
        """Yield `queue` and other columns of the charts' queues, batch by batch."""
        wanted = pa.array(self.queues, pa.string())
        scanner = self.dataset(name, paths).scanner(columns=["queue", *columns], filter=where)
        for batch in scanner.to_batches():
            queue = pc.fill_null(batch["queue"].cast(pa.string()), NO_NAME)
            rows = pa.table({"queue": queue} | {column: batch[column] for column in columns})
            yield rows.filter(pc.is_in(queue, wanted))

    def largest(self, name: str, by: str, rows: int) -> pd.DataFrame:
        """Return the rows of a table with the greatest values in a column."""
        found = arrow_schema(TABLES[name]).empty_table()
        for batch in self.dataset(name).to_batches(columns=list(TABLES[name])):
            both = pa.concat_tables([found, pa.Table.from_batches([batch]).cast(found.schema)])
            found = both.take(pc.select_k_unstable(both, rows, [(by, "descending")]))
        return _named(found.to_pandas())

    def all(self, name: str) -> pd.DataFrame:
        """Return a small table."""
        return _named(self.dataset(name).to_table(columns=list(TABLES[name])).to_pandas())

    def first(self, name: str, rows: int) -> pd.DataFrame:
        """Return the first rows of a table."""
        return _named(self.dataset(name).head(rows, columns=list(TABLES[name])).to_pandas())


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Replace null by a name in the column `queue`."""
    return rows.fillna({"queue": NO_NAME})


class Sums:
    """Adds up rows by key as they arrive."""

    def __init__(self, keys: Sequence[str], how: dict[str, str]) -> None:
        """Start without rows.

        Args:
            keys: Columns of the key.
            how: `sum`, `min` or `max` for each other column.
        """
        self._keys, self._how = tuple(keys), how
        self._parts: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._parts.append(grouped(rows, self._keys, self._how))
        if len(self._parts) >= _PARTS:
            self._parts = [self._total()]

    def rows(self) -> pa.Table:
        """Return a row for each key, in order. Rows must have been added, though perhaps none."""
        return self._total().sort_by([(name, "ascending") for name in self._keys])

    def _total(self) -> pa.Table:
        return grouped(pa.concat_tables(self._parts), self._keys, self._how)
