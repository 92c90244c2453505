"""Catalogs of Apache Iceberg, by the names of PyIceberg's configuration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from freshq.errors import needs, quoted
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from freshq_pipeline.storage.folder import Folder

# The extra with PyIceberg.
ICEBERG: Final = "iceberg"
# A SQLite file in the output folder, unless PyIceberg's configuration has a catalog of this name.
LOCAL: Final = "local"
GLUE: Final = "glue"
# Below the output folder: this file, and what Iceberg writes about the tables.
FOLDER: Final = "catalog"
FILE: Final = f"{FOLDER}/catalog.db"
_NAMESPACE: Final = "freshq"
_NAME: Final = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)?")


@dataclass(frozen=True, slots=True)
class CatalogName:
    """A catalog, and the namespace in it.

    Attributes:
        catalog: Name in PyIceberg's configuration, or local or glue.
        namespace: Namespace (of Glue: database) of the tables.
    """

    catalog: str
    namespace: str = _NAMESPACE

    @classmethod
    def parse(cls, text: str) -> CatalogName:
        """Return the catalog that an option names, as NAME or NAME.NAMESPACE.

        Raises:
            BadInput: If it is neither.
        """
        if not _NAME.fullmatch(text):
            msg = f"catalog: must be NAME or NAME.NAMESPACE, such as {LOCAL} or {GLUE}.{_NAMESPACE}, "
            msg += f"got {quoted(text)}"
            raise BadInput(msg)
        return cls(*text.split("."))

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}"


def open_catalog(out: Folder, name: str) -> Catalog:
    """Return a catalog of PyIceberg's configuration, or `local` or `glue`; close it after use.

    Args:
        out: The output folder.
        name: Name of the catalog.

    Raises:
        BadInput: If PyIceberg has no such catalog, or it cannot be used.
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
    """Return whether a catalog is a file of the output folder that no run has written yet.

    Raises:
        BadInput: If PyIceberg has no such catalog.
        MissingExtra: If PyIceberg is not installed.
    """
    with needs(ICEBERG):
        is_file = _properties(out, name).get("uri") == _uri(out)
        if is_file:
            import_module("sqlalchemy")  # which PyIceberg imports only when it opens the file
        return is_file and not out.exists(FILE)


def unusable(name: str, error: Exception) -> BadInput:
    """Return an error that says why a catalog cannot be used."""
    return BadInput(f"catalog: {name!r} cannot be used: {one_line(error)}")


def one_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _properties(out: Folder, name: str) -> dict[str, str]:
    """Return the properties of a catalog for PyIceberg."""
    from pyiceberg.utils.config import Config

    # Otherwise PyIceberg asks S3 in North Virginia, which a job without a network of its own cannot reach.
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
