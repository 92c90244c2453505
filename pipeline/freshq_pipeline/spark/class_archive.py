"""An archive of the classes that Spark's Java loads: later starts map them instead of loading them from jars.

Java compares an archive with its own build and with the jars, and starts without one that does not fit. So an
archive can only save time. It is made at the end of the second start, because making it takes longer than it
saves once.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyspark

from freshq_pipeline.spark.user_cache import cache_folder

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
