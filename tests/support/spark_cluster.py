"""A Spark cluster of this machine: a standalone master and workers, each a process, on the loopback."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, TypeVar

import pyspark

from freshq_pipeline.spark.java import java_home

T = TypeVar("T")
SPARK: Final = Path(pyspark.__file__).parent
HOST: Final = "127.0.0.1"
# For processes that live for seconds: better compiled code would not be used for long.
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
START_SECONDS: Final = 90.0
_PORT: Final = re.compile(r"started service 'sparkMaster' on port (\d+)")


class SparkCluster:
    """A master and its workers, from the start to the end of a `with` block.

    Attributes:
        master: Its address, as `--master` takes it.
    """

    def __init__(self, folder: Path, *, workers: int, memory: str = "700m") -> None:
        """Prepare a cluster.

        Args:
            folder: The folder for all files.
            workers: How many, of one core each.
            memory: Memory of each worker, in Spark's notation.
        """
        self.master = ""
        self._folder = folder
        self._workers = workers
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that takes part."""
        given = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        home = self._folder / "java"
        if home.exists():
            given["JAVA_HOME"] = str(home)
        return given | {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        }

    def __enter__(self) -> Self:
        """Start the processes, and wait until all workers are known to the master."""
        self._folder.mkdir(parents=True)
        java_home(self._folder / "java")
        try:
            log = self._start("master", "org.apache.spark.deploy.master.Master")
            found = _wait_for(lambda: _PORT.search(log.read_text()), self._alive)
            self.master = f"spark://{HOST}:{found.group(1)}"
            for number in range(self._workers):
                work = str(self._folder / f"work{number}")
                options = ["--cores", "1", "--memory", self._memory, "--work-dir", work, self.master]
                self._start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *options)
            _wait_for(lambda: log.read_text().count("Registering worker") == self._workers, self._alive)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes; a worker stops its executors."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def submit(self, arguments: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
        """Return the result of a `spark-submit` with this master.

        Args:
            arguments: All arguments after `--master`.
            seconds: How long it may take.
        """
        command = [str(SPARK / "bin/spark-submit"), "--master", self.master, *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=self._folder, capture_output=True, text=True, check=False,
            timeout=seconds,
        )  # fmt: skip

    def _start(self, name: str, main: str, *options: str) -> Path:
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(SPARK / "bin/spark-class"), main, "--host", HOST, "--port", "0", "--webui-port", "0",
                 *options],
                env=self.environment, cwd=self._folder, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return log

    def _alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)


def _wait_for(condition: Callable[[], T | None], alive: Callable[[], bool]) -> T:
    """Return the value of a condition as soon as it is true."""
    until = time.monotonic() + START_SECONDS
    while not (found := condition()):
        assert alive(), "a process of the cluster ended"
        assert time.monotonic() < until, f"the cluster did not start within {START_SECONDS:g} s"
        time.sleep(0.05)  # between looks
    return found
