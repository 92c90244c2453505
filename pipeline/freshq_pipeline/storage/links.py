"""`OUT/tables`: on a disk a link to the tables of the current run, so that a pattern finds one run.

The files stay in one place, under names that never change. Each run has a folder where they have second names
(hard links), and publication replaces one symbolic link. A bucket has no links, nor have some disks: there,
`OUT/tables` has the manifest only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.partitions import FILES, MANIFEST, PUBLISHED, manifest, manifest_path

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.partitions import Files

# How a file system says that it has no links. FAT answers EPERM.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# The next link, and what it replaces if that is a folder. Only one run at a time makes them.
_NEXT: Final = f".{PUBLISHED}.next"
_LAST: Final = f".{PUBLISHED}.last"
# The tables of a run that is no longer kept. The next run makes them its own, which saves most links.
_SPARE: Final = f".{PUBLISHED}.spare"


def has_links(out: Folder) -> bool:
    """Return whether files in a folder can have second names, and links can name folders; tries it."""
    root = out.on_disk("")
    if root is None:
        return False
    out.make("")
    with TemporaryDirectory(prefix=".links-", dir=root) as scratch:
        file = Path(scratch, "file")
        file.touch()
        try:
            os.link(file, file.with_name("second"))
            file.with_name("link").symlink_to(file.name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
    return True


def check_tables(out: Folder) -> None:
    """Check that nothing else than a run made `OUT/tables`, which the next one replaces.

    Raises:
        BadInput: If not.
    """
    found = out.on_disk(PUBLISHED)
    if found is None or not os.path.lexists(found):
        return
    linked = found.is_symlink()
    if not (found.readlink().parts[:1] == ("runs",) if linked else (found / MANIFEST).exists()):
        msg = f"out: {found} is not from a run; move it away, or use another folder"
        raise BadInput(msg)


def link_tables(out: Folder, run_id: str, files: Files) -> None:
    """Write the manifest of a run, and link to the files that it names from a folder of the run.

    Args:
        out: The output folder.
        run_id: Id of the run.
        files: Files of its tables.

    Raises:
        BadInput: If a file is missing.
    """
    named = manifest(run_id, files)
    target = manifest_path(run_id).removesuffix(f"/{MANIFEST}")
    root = out.on_disk("")
    if root is not None and has_links(out):
        wanted = (path for paths in named["tables"].values() for path in paths)
        _fill(out, root, target, {path.removeprefix(f"{FILES}/"): path for path in wanted})
    out.write_json(manifest_path(run_id), named)


def _fill(out: Folder, root: Path, target: str, wanted: dict[str, str]) -> None:
    """Let a folder have links to files, and nothing else.

    Args:
        out: The output folder.
        root: Where that is on a disk.
        target: Path of the folder to fill, which does not exist.
        wanted: Paths of the files, by the path of their link below the folder.
    """
    if out.exists(_SPARE):
        out.make(target.rpartition("/")[0])
        (root / _SPARE).rename(root / target)
    below = len(f"{root}/{target}/")
    found = {f"{folder}/{file}"[below:] for folder, _, files in os.walk(root / target) for file in files}
    for name in wanted.keys() - found:
        _link(f"{root}/{wanted[name]}", f"{root}/{target}/{name}")
    for name in found - wanted.keys():
        out.delete_files([f"{target}/{name}"])
        folder = (root / target / name).parent
        while folder != root / target and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def spare_tables(out: Folder, run_id: str) -> None:
    """Set the links of a run that is deleted aside for the next run, unless there are some already."""
    found = out.on_disk(manifest_path(run_id).removesuffix(f"/{MANIFEST}"))
    if found is not None and found.is_dir() and not out.exists(_SPARE):
        found.rename(found.parents[2] / _SPARE)


def _link(file: str, name: str) -> None:
    """Give a file a second name, in a folder that is made if needed."""
    try:
        os.link(file, name)
    except FileNotFoundError:
        if not Path(file).exists():
            msg = f"out: {file} is missing, which an earlier run wrote; run once with --full-refresh, "
            msg += "or restore it"
            raise BadInput(msg) from None
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        os.link(file, name)


def show_tables(out: Folder, run_id: str) -> None:
    """Let `OUT/tables` be the tables of a run, unless it is."""
    place = out.on_disk(PUBLISHED)
    if place is not None and has_links(out):
        _point(out, place, Path(manifest_path(run_id)).parent)
        return
    seen = f"{PUBLISHED}/{MANIFEST}"
    if not out.exists(seen) or out.read_json(seen)["run_id"] != run_id:
        out.write_json(seen, out.read_json(manifest_path(run_id)))


def _point(out: Folder, place: Path, target: Path) -> None:
    """Replace a link at once; a folder that has its name is from an earlier version, or a copy."""
    if not place.is_symlink() or place.readlink() != target:
        if place.is_dir() and not place.is_symlink():
            check_tables(out)
            out.delete(_LAST)
            place.replace(place.with_name(_LAST))
        draft = place.with_name(_NEXT)
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.replace(place)
    out.delete(_LAST)
