"""Register the published tables in a catalog of Apache Iceberg.

After a run, one commit per table makes the catalog list exactly the files in the run's manifest. A run that
was killed in between is therefore completed by the next run, and no file is registered twice. Each snapshot
holds the id of its run, by which readers match snapshots of several tables.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from freshq.errors import needs, quoted
from freshq_pipeline.errors import BadInput, NotRegistered
from freshq_pipeline.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from freshq_pipeline.storage.folder import Folder


# The extra that installs PyIceberg.
ICEBERG: Final = "iceberg"
# A SQLite file in the output folder, unless PyIceberg's configuration defines a catalog of this name.
LOCAL: Final = "local"
GLUE: Final = "glue"
# The folder, below the output folder, for the SQLite file and Iceberg's metadata.
FOLDER: Final = "catalog"
FILE: Final = f"{FOLDER}/catalog.db"
_NAMESPACE: Final = "freshq"
_NAME: Final = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)?")


@dataclass(frozen=True, slots=True)
class CatalogName:
    """A catalog and a namespace in it.

    Attributes:
        catalog: Name in PyIceberg's configuration, or `local` or `glue`.
        namespace: Namespace of the tables (in Glue: the database).
    """

    catalog: str
    namespace: str = _NAMESPACE

    @classmethod
    def parse(cls, text: str) -> CatalogName:
        """Parse an option given as NAME or NAME.NAMESPACE.

        Raises:
            BadInput: If it has another form.
        """
        if not _NAME.fullmatch(text):
            msg = f"catalog: must be NAME or NAME.NAMESPACE, such as {LOCAL} or {GLUE}.{_NAMESPACE}, "
            msg += f"got {quoted(text)}"
            raise BadInput(msg)
        return cls(*text.split("."))

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}"


def open_catalog(out: Folder, name: str) -> Catalog:
    """Open a catalog; close it after use.

    Args:
        out: The output folder.
        name: Name in PyIceberg's configuration, or `local` or `glue`.

    Raises:
        BadInput: If PyIceberg does not know the catalog or cannot use it.
        MissingExtra: If PyIceberg is not installed.
    """
    with needs(ICEBERG):
        from pyiceberg.catalog import load_catalog

        properties = _properties(out, name)
        if properties.get("uri") == _uri(out):
            out.make(FOLDER)
        try:
            return load_catalog(name, **properties)
        except ModuleNotFoundError:
            raise
        except Exception as error:
            raise unusable(name, error) from error


def is_unwritten(out: Folder, name: str) -> bool:
    """Return whether a catalog is a file in the output folder that does not exist yet.

    Raises:
        BadInput: If PyIceberg does not know the catalog.
        MissingExtra: If PyIceberg is not installed.
    """
    with needs(ICEBERG):
        is_file = _properties(out, name).get("uri") == _uri(out)
        if is_file:
            import_module("sqlalchemy")  # PyIceberg imports it only when it opens the file
        return is_file and not out.exists(FILE)


def unusable(name: str, error: Exception) -> BadInput:
    """Return an error saying why a catalog cannot be used."""
    return BadInput(f"catalog: {name!r} cannot be used: {one_line(error)}")


def one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _properties(out: Folder, name: str) -> dict[str, str]:
    """Return PyIceberg's properties for a catalog."""
    from pyiceberg.utils.config import Config

    # Without a region PyIceberg calls S3 in North Virginia, which a job without its own network cannot reach.
    region = os.environ.get("AWS_REGION")
    common = {"s3.region": region} if region else {}
    configured = Config().get_catalog_config(name)
    if configured is not None:
        return common | {key: str(value) for key, value in configured.items()}
    if name == GLUE:
        return common | {"type": "glue"}
    if name == LOCAL and out.local:
        return {"type": "sql", "uri": _uri(out)}
    if name == LOCAL:
        msg = f"catalog: {LOCAL!r} is a file in the output folder, so {out.uri} must be on a disk; use {GLUE}"
        raise BadInput(msg)
    variable = f"PYICEBERG_CATALOG__{name.upper()}__TYPE"
    msg = f"catalog: PyIceberg has no catalog {name!r}; configure it in .pyiceberg.yaml or by {variable}, "
    msg += f"or use {LOCAL} or {GLUE}"
    raise BadInput(msg)


def _uri(out: Folder) -> str:
    return f"sqlite:///{out.uri.removeprefix('file://')}/{FILE}"


# The file that names the catalog of an output folder.
REGISTERED: Final = "_catalog.json"
# Properties of a snapshot (the id of its run) and of a table (the output folder).
RUN_ID: Final = "freshq.run-id"
OUT: Final = "freshq.out"
# With this many manifests in a table, they are merged.
MAX_MANIFESTS: Final = 16


def registry_of(out: Folder, wanted: str | None) -> Registry | None:
    """Return the registry of an output folder, checked; None if its tables are not registered.

    Args:
        out: The output folder.
        wanted: NAME or NAME.NAMESPACE of the catalog; None: the catalog of earlier runs, if any.

    Raises:
        BadInput: If the tables are registered in another catalog, or the catalog cannot be used.
        MissingExtra: If PyIceberg is not installed.
    """
    name = None if wanted is None else CatalogName.parse(wanted)
    if out.exists(REGISTERED):
        known = CatalogName(**out.read_json(REGISTERED))
        if name not in (None, known):
            msg = f"catalog: the tables of {out.uri} are registered in {known}; use it, or another folder"
            raise BadInput(msg)
        name = known
    if name is None:
        return None
    registry = Registry(out, name)
    registry.check()
    return registry


@dataclass(frozen=True, slots=True)
class Registry:
    """The catalog of an output folder.

    Attributes:
        out: The output folder.
        name: The catalog and namespace.
    """

    out: Folder
    name: CatalogName

    def check(self) -> None:
        """Check that the catalog works and that its tables belong to the output folder.

        Raises:
            BadInput: If it does not.
            MissingExtra: If PyIceberg is not installed.
        """
        if is_unwritten(self.out, self.name.catalog):
            return
        with open_catalog(self.out, self.name.catalog) as catalog:
            try:
                owners = {self._owner(catalog, name) for name in TABLES}
            except Exception as error:
                raise unusable(self.name.catalog, error) from error
        others = owners - {None, self._address()}
        if others:
            msg = f"catalog: {self.name} has the tables of {', '.join(map(str, others))}; use another "
            msg += "namespace, or drop them first"
            raise BadInput(msg)

    def register(self, run_id: str, files: Mapping[str, Iterable[str]]) -> None:
        """Make each table list exactly the files of a run.

        Args:
            run_id: Id of the run.
            files: Paths of the files by table, below the output folder.

        Raises:
            NotRegistered: If the catalog failed; some tables may be registered.
        """
        if not self.out.exists(REGISTERED):
            self.out.write_json(REGISTERED, {"catalog": self.name.catalog, "namespace": self.name.namespace})
        with self._catalog("the tables are published, but not all are registered in") as catalog:
            catalog.create_namespace_if_not_exists(self.name.namespace)
            for name in TABLES:
                _replace(
                    self._table(catalog, name), run_id, {self._address(f"/{path}") for path in files[name]}
                )

    def retire(self, runs: Collection[str]) -> set[str]:
        """Expire the snapshots of all other runs; return the paths of files that remaining snapshots need.

        A tag or branch keeps its snapshot, and so the files of that snapshot.

        Args:
            runs: Ids of the runs to keep; their files are not returned.

        Raises:
            NotRegistered: If the catalog failed.
        """
        needed: set[str] = set()
        with self._catalog("the tables are registered, but old snapshots are still in") as catalog:
            for name in TABLES:
                needed |= _expire(self._table(catalog, name), runs)
        below = len(self._address("/"))
        return {address[below:] for address in needed}

    @contextmanager
    def _catalog(self, state: str) -> Iterator[Catalog]:
        """Open the catalog; if it fails, the error describes the state of the tables."""
        try:
            with open_catalog(self.out, self.name.catalog) as catalog:
                yield catalog
        except Exception as error:
            msg = f"{state} {self.name}; run again: {one_line(error)}"
            raise NotRegistered(msg) from error

    def _owner(self, catalog: Catalog, name: str) -> str | None:
        """Return the output folder that a table of the catalog belongs to; None if there is no such table."""
        identifier = (self.name.namespace, name)
        if not catalog.table_exists(identifier):
            return None
        return catalog.load_table(identifier).properties.get(OUT, "another application")

    def _table(self, catalog: Catalog, name: str) -> Table:
        """Return a table of the catalog; create it if it does not exist."""
        from freshq_pipeline.storage.data_files import partitions_of, schema_of

        identifier = (self.name.namespace, name)
        schema = schema_of(name)
        if catalog.table_exists(identifier):
            table = catalog.load_table(identifier)
            if set(schema.column_names) - set(table.schema().column_names):  # created by an earlier version
                with table.update_schema() as change:
                    change.union_by_name(schema)
            return table
        properties = {
            OUT: self._address(),
            # Spark's files have no column ids.
            "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "10",
            "commit.manifest.min-count-to-merge": str(MAX_MANIFESTS),
        }
        place = self._address(f"/{FOLDER}/{self.name.namespace}/{name}")
        return catalog.create_table(
            identifier, schema, place, partitions_of(name, schema), properties=properties
        )

    def _address(self, path: str = "") -> str:
        """Return the address of a path below the output folder in the form that all engines understand."""
        uri = self.out.uri.replace("s3a://", "s3://", 1)
        return (uri if "://" in uri else f"file://{uri}") + path


def _replace(table: Table, run_id: str, wanted: set[str]) -> None:
    """Replace the files of a table in one commit."""
    from freshq_pipeline.storage.data_files import data_files

    snapshot = table.current_snapshot()
    known = {} if snapshot is None else {file.file_path: file for file in _files(table, [snapshot])}
    by = None if snapshot is None else _run_of(snapshot)
    if by == run_id and known.keys() == wanted:
        return
    # Another writer may have deleted rows of files that are still listed.
    kept = set[str]() if by is None else known.keys() & wanted
    added = data_files(table.io, table.metadata, sorted(wanted - kept))
    properties = {RUN_ID: run_id}
    with table.transaction() as transaction:
        with transaction.update_snapshot(properties).overwrite() as change:
            for address in known.keys() - kept:
                change.delete_data_file(known[address])
            for file in added:
                change.append_data_file(file)
        if len(transaction.table_metadata.snapshots[-1].manifests(table.io)) >= MAX_MANIFESTS:
            with transaction.update_snapshot(properties).merge_append():
                pass  # merges the manifests only


def _expire(table: Table, runs: Collection[str]) -> set[str]:
    """Expire snapshots older than all of `runs`; return the files of other remaining snapshots."""
    old = _outdated(table, runs)
    left = [one for one in table.metadata.snapshots if one not in old]
    if old:
        _remove(table, old, left)
    return {file.file_path for file in _files(table, (one for one in left if _run_of(one) not in runs))}


def _outdated(table: Table, runs: Collection[str]) -> list[Snapshot]:
    """Return the snapshots that are older than all of `runs` and have neither tag nor branch."""
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    first = next(place for place, one in enumerate(snapshots) if _run_of(one) in runs)
    named = {reference.snapshot_id for reference in table.metadata.refs.values()}
    return [one for one in snapshots[:first] if one.snapshot_id not in named]


def _remove(table: Table, old: list[Snapshot], left: list[Snapshot]) -> None:
    """Expire snapshots, and delete the manifests that only they use."""
    unneeded = _manifest_paths(table, old) - _manifest_paths(table, left)
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
    for address in unneeded:
        table.io.delete(address)


def _run_of(snapshot: Snapshot) -> str | None:
    """Return the id of the run that made a snapshot; None if another program made it."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(RUN_ID)


def _manifest_paths(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the addresses of the manifests and manifest lists of snapshots."""
    return {
        address
        for snapshot in snapshots
        for address in (snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(table.io)))
    }


def _files(table: Table, snapshots: Iterable[Snapshot]) -> list[DataFile]:
    """Return the data files of snapshots."""
    from pyiceberg.manifest import DataFileContent

    manifests = {one for snapshot in snapshots for one in snapshot.manifests(table.io)}
    return [
        entry.data_file
        for one in manifests
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.data_file.content == DataFileContent.DATA
    ]
