"""The environment of Java and of Python's workers, which is decided here alone.

Variables for another Spark, Hadoop or Java must not change what the pipeline does. So Java gets only the
variables in a list.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Variables of the command's environment that Java and the workers get.
KEPT: Final = (
    # Programs and libraries, including libraries that supply a missing user name.
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "NSS_WRAPPER_PASSWD", "NSS_WRAPPER_GROUP",
    # Python's packages.
    "HOME", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
    # Limits on memory and threads.
    "MALLOC_ARENA_MAX", "ARROW_DEFAULT_MEMORY_POOL",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
# What a cluster of another kind needs in addition, by the beginning of its master URL.
KEPT_FOR: Final = {
    "yarn": ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_USER_NAME"),
    "k8s:": ("KUBECONFIG",),
}
# Variables that PySpark reads in this process, at every call.
_OF_SPARK: Final = ("SPARK_", "PYSPARK_")
# A folder that cannot exist, so that Spark finds no spark-defaults.conf and no spark-env.sh. Its path is part
# of the class path, which must be the same in every run.
NO_FOLDER: Final = f"{os.devnull}/conf"


def java_environment(
    given: Mapping[str, str], scratch: Path, java_home: Path | None, master: str = "local"
) -> dict[str, str]:
    """Return the whole environment of Java, which its Python workers inherit.

    Args:
        given: The environment of the command.
        scratch: Folder for temporary files.
        java_home: Home of the Java to start; None: the first one in PATH.
        master: Spark's master URL.
    """
    import pyspark

    names = KEPT + next((more for kind, more in KEPT_FOR.items() if master.startswith(kind)), ())
    kept = {name: given[name] for name in names if given.get(name)}
    home = {} if java_home is None else {"JAVA_HOME": str(java_home)}
    return {"PATH": os.defpath} | kept | home | {
        "TMPDIR": str(scratch),
        "TZ": "UTC",
        # Java decodes names of files by the locale; Turkish, for example, has another upper case of i.
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",
        # Workers import what this process imports, from wherever it was started.
        "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)),
        # Otherwise workers start whichever python3 comes first in PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": NO_FOLDER,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_MODE": "0",
    }  # fmt: skip


def java_only(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which to ask a Java for its version: options of another one may stop it."""
    return {name: given[name] for name in KEPT if given.get(name)} | {"LC_ALL": "C.UTF-8"}


@contextmanager
def without_spark_variables() -> Iterator[None]:
    """Hide Spark's variables from PySpark in this process; at the end, restore the whole environment."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(_OF_SPARK):
            del os.environ[name]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
