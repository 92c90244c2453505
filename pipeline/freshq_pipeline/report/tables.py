"""What the report needs of the published tables, read in batches: their size does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.report.words import NO_NAME
from freshq_pipeline.schemas import BY_DAY, TABLES, arrow_schema
from freshq_pipeline.storage.table_files import FOLDERS, newest_days, place, published_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from freshq_pipeline.storage.folder import Folder

# Most days in the charts: the newest ones.
MAX_DAYS: Final = 31
# How many partial sums to hold before adding them up.
_PARTS: Final = 64


@dataclass(frozen=True)
class Tables:
    """The tables of a run.

    Attributes:
        out: The output folder.
        run_id: Id of the run.
        queues: The queues in the charts, with `NO_NAME` for none.
    """

    out: Folder
    run_id: str
    queues: Sequence[str]

    @cached_property
    def tasks(self) -> dict[str, list[str]]:
        """The files of `tasks` on the newest days."""
        return newest_days(published_paths(self.out, self.run_id, "tasks"), MAX_DAYS)

    @cached_property
    def minutes(self) -> dict[str, list[str]]:
        """The files of `minutes` on the newest days."""
        return newest_days(published_paths(self.out, self.run_id, "minutes"), MAX_DAYS)

    def dataset(self, name: str, paths: Sequence[str] | None = None) -> Any:
        """Return a table, or some of its files, as a PyArrow dataset."""
        files = published_paths(self.out, self.run_id, name) if paths is None else paths
        return self.out.dataset(files, place(name), FOLDERS if name in BY_DAY else ())

    def batches(
        self,
        name: str,
        paths: Sequence[str],
        columns: Sequence[str],
        where: Any = None,
    ) -> Iterator[pa.Table]:
        """Yield rows of the charts' queues, batch by batch, with `queue`."""
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
        """Return a table, which must be small."""
        return _named(self.dataset(name).to_table(columns=list(TABLES[name])).to_pandas())

    def first(self, name: str, rows: int) -> pd.DataFrame:
        """Return the first rows of a table."""
        return _named(self.dataset(name).head(rows, columns=list(TABLES[name])).to_pandas())


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with a name for no queue."""
    return rows.fillna({"queue": NO_NAME})


class Sums:
    """Rows added up by key, as they come."""

    def __init__(self, keys: Sequence[str], how: dict[str, str]) -> None:
        """Begin without rows.

        Args:
            keys: The columns of the key.
            how: For each other column `sum`, `min` or `max`.
        """
        self._keys, self._how = list(keys), how
        self._parts: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._parts.append(self._grouped(rows))
        if len(self._parts) >= _PARTS:
            self._parts = [self._total()]

    def rows(self) -> pa.Table:
        """Return a row for each key, ordered by it. Something must have been added, if only no rows."""
        return self._total().sort_by([(name, "ascending") for name in self._keys])

    def _total(self) -> pa.Table:
        return self._grouped(pa.concat_tables(self._parts))

    def _grouped(self, rows: pa.Table) -> pa.Table:
        found = rows.group_by(self._keys).aggregate(list(self._how.items()))
        return found.select(
            [*self._keys, *(f"{name}_{how}" for name, how in self._how.items())]
        ).rename_columns([*self._keys, *self._how])
