"""The installed command in the environments of strangers: folders, users, variables, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from freshq_pipeline.spark.interrupts import SIGNALS
from freshq_pipeline.spark.scratch import SCRATCH_PREFIX
from tests.pipeline.conftest import CACHE
from tests.pipeline.recording import small, write_lines
from tests.support.worker_threads import wait_until

pytestmark = pytest.mark.timeout(1800)  # starts of Spark, on a machine that may be busy
COMMAND: Final = Path(sys.executable).parent / "freshq-pipeline"
ODD_NAME: Final = "a b'c\"d $e, é日"
SPARK: Final = ("--master", "local[2]", "--memory", "1g")
DEFAULTS: Final = """
spark.master yarn
spark.jars /nowhere/x.jar
spark.sql.extensions no.such.Extension
spark.eventLog.enabled true
spark.eventLog.dir /nowhere
spark.hadoop.fs.defaultFS hdfs://127.0.0.1:9
"""
CORE_SITE: Final = """<configuration><property>
<name>fs.defaultFS</name><value>hdfs://127.0.0.1:9</value>
</property></configuration>"""
# Variables for another Spark, Hadoop, Java or Python; "{odd}" is a folder with configurations.
VARIABLES: Final = (
    {"SPARK_REMOTE": "sc://127.0.0.1:9", "SPARK_API_MODE": "connect"},
    {"SPARK_CONNECT_MODE_ENABLED": "1", "SPARK_TESTING": "1"},
    {"PYSPARK_SUBMIT_ARGS": "--master yarn nothing", "SPARK_SUBMIT_OPTS": "-Xbogus"},
    {"SPARK_HOME": "/nowhere", "SPARK_SCALA_VERSION": "1"},
    {"SPARK_CONF_DIR": "{odd}", "SPARK_LOCAL_DIRS": "/nowhere"},
    {"HADOOP_CONF_DIR": "{odd}", "YARN_CONF_DIR": "{odd}", "HADOOP_USER_NAME": "someone"},
    {"JAVA_TOOL_OPTIONS": "-javaagent:/nowhere.jar", "_JAVA_OPTIONS": "-Xmx2m", "CLASSPATH": "/nowhere"},
    {"JDK_JAVA_OPTIONS": "-Xmx2m", "JAVA_HOME": "/nowhere"},
    {"LC_ALL": "C", "TZ": "America/New_York"},
    {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    {"PYSPARK_PYTHON": "/nowhere/python", "PYSPARK_DRIVER_PYTHON": "jupyter", "PYSPARK_PIN_THREAD": "false"},
    {"SPARK_DIST_CLASSPATH": "/nowhere", "SPARK_PREPEND_CLASSES": "1", "SPARK_PRINT_LAUNCH_COMMAND": "1"},
    {"SPARK_LOCAL_IP": "192.0.2.1", "SPARK_USER": "someone", "BASH_ENV": "{odd}/spark-env.sh"},
    {"PYTHONSTARTUP": "/nowhere", "PYTHONHASHSEED": "random", "PYTHONPATH": "relative"},
)  # fmt: skip
# Each pair differs in one of these runs, and occurs together in the run that has all.
MIXES: Final = (
    range(len(VARIABLES)),
    *([i for i in range(len(VARIABLES)) if i >> bit & 1] for bit in range(4)),
)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a folder with an odd name, recorded events, and configurations of another Spark."""
    folder = tmp_path / ODD_NAME
    write_lines(folder / "in/a.json", small().landed())
    for name in ("tmp", "home", "cache"):
        (folder / name).mkdir()
    (folder / "spark-defaults.conf").write_text(DEFAULTS)
    (folder / "spark-env.sh").write_text("exit 7\n")
    (folder / "core-site.xml").write_text(CORE_SITE)
    # A module of the working directory, which Python's workers must not import.
    (folder / "random.py").write_text("raise SystemExit(9)\n")
    return folder


def environment(odd: Path, *more: dict[str, str]) -> dict[str, str]:
    """Return an environment with folders of an odd name, and more variables."""
    given = os.environ | {"TMPDIR": str(odd / "tmp"), "HOME": str(odd / "home")}
    given["XDG_CACHE_HOME"] = str(odd / "cache")
    for variables in more:
        given |= {name: value.replace("{odd}", str(odd)) for name, value in variables.items()}
    return given


def command(odd: Path, *options: str) -> list[str]:
    places = ["--events", str(odd / "in"), "--out", str(odd / "out")]
    return [str(COMMAND), "run", *places, *SPARK, "--json", *options]


def summary_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the summary that a command printed, after a check that it printed nothing else."""
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "/7 " not in line] == []
    return dict(json.loads(done.stdout))


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until a condition holds or a process has ended, however long Spark takes."""
    while process.poll() is None and not condition():
        time.sleep(0.01)  # between looks


def run(arguments: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=800, **how)


# Each takes half a minute on two processors. A mix that never ends fails after the time of one command.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mix", MIXES, ids=("all", "1st bit", "2nd bit", "3rd bit", "4th bit"))
def test_any_mix_of_variables_of_others(mix: Sequence[int], odd: Path) -> None:
    """With the archive of classes from a folder with an odd name, if other tests have made one."""
    made = [path for path in Path(CACHE, "freshq").glob("*") if path.suffix in (".jsa", ".started")]
    (odd / "cache/freshq").mkdir()
    for path in made:
        (odd / "cache/freshq" / path.name).symlink_to(path)
    given = environment(odd, *(VARIABLES[number] for number in mix))
    summary = summary_of(run(command(odd), env=given, cwd=odd))
    assert (summary["events_read"], summary["events_quarantined"]) == (29, 0)
    assert list((odd / "tmp").iterdir()) == []
    assert list((odd / "home").iterdir()) == []
    report = [str(COMMAND), "report", "--out", str(odd / "out")]
    assert run(report, env=environment(odd, {"LC_ALL": "C"})).returncode == 0


def test_local_paths_are_local_under_spark_submit_as_well(odd: Path) -> None:
    program = odd / "main.py"
    program.write_text("from freshq_pipeline.__main__ import main\nmain()\n")
    home = Path(pyspark.__file__).parent
    given = environment(odd, {"SPARK_HOME": str(home), "HADOOP_CONF_DIR": "{odd}"})
    given |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    (odd / "random.py").unlink()  # beside the program
    submit = [str(home / "bin/spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    done = run([*submit, str(program), *command(odd)[1:]], env=given, cwd=odd)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events_read"] == 29


def namespaces() -> bool:
    """Return whether this user may create namespaces, to mount folders and to be somebody else."""
    tried = ("unshare", "-m", "unshare", "--user", "--map-user=12345", "--map-group=12345", "true")
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run(tried, check=False, capture_output=True).returncode
    )


# Mounts the first argument with noexec and the second one read-only, and runs the others as nobody known.
ELSEWHERE: Final = """
mount -t tmpfs -o noexec none "$1" && mount --bind "$2" "$2" && mount -o remount,bind,ro "$2" && shift 2 &&
exec unshare --user --map-user=12345 --map-group=12345 "$@"
"""


@pytest.mark.skipif(not namespaces(), reason="needs namespaces")
@pytest.mark.parametrize(("home", "bundled"), [(None, False), ("{odd}/home", True)])
def test_a_user_without_an_entry_with_noexec_and_a_read_only_home(
    home: str | None, odd: Path, *, bundled: bool
) -> None:
    given = environment(odd)
    del given["HOME"], given["XDG_CACHE_HOME"]
    if home is not None:
        given["HOME"] = home.replace("{odd}", str(odd))
    if bundled:
        given["PATH"] = str(_without_java(odd))
    there = [shutil.which("unshare") or "", "-m", shutil.which("sh") or "", "-c", ELSEWHERE, "sh"]
    done = run([*there, str(odd / "tmp"), str(odd / "home"), *command(odd)], env=given)
    assert summary_of(done)["events_read"] == 29


def _without_java(folder: Path) -> Path:
    """Return a folder for PATH with the programs of the system, but no Java."""
    programs = folder / "bin"
    programs.mkdir()
    names = ("bash", "sh", "dirname", "env", "ps", "unshare", "mount", "cat", "chmod", "ls", "readlink", "rm")
    for name in names:
        (programs / name).symlink_to(shutil.which(name) or "")
    return programs


def test_a_deleted_working_directory_has_its_name(odd: Path) -> None:
    gone = odd / "gone"
    gone.mkdir()
    relative = 'rmdir "$PWD" && exec "$@"'
    shell = ["sh", "-c", relative, "sh"]
    done = run(
        [*shell, str(COMMAND), "run", "--events", "in", "--out", "out"], cwd=gone, env=environment(odd)
    )
    assert done.returncode == 3
    expected = f"the working directory {gone} was deleted; change to another one, or give absolute paths"
    assert done.stderr == f"freshq-pipeline: {expected}\n"
    gone.mkdir()
    assert summary_of(run([*shell, *command(odd)], cwd=gone, env=environment(odd)))["events_read"] == 29


@contextmanager
def started(odd: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command; kill it at the end of the block."""
    with subprocess.Popen(
        command(odd, *options),
        env=environment(odd),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def is_folder_made(odd: Path) -> bool:
    # Not any file: Python tries whether it may write there, and would leave that file.
    return bool(list((odd / "tmp").glob(f"{SCRATCH_PREFIX}*")))


def is_java_started(odd: Path) -> bool:
    return bool(list((odd / "tmp").glob(f"{SCRATCH_PREFIX}*/java.log")))


def is_java_connected(odd: Path) -> bool:
    return bool(list((odd / "tmp").glob(f"{SCRATCH_PREFIX}*/connection")))


def is_spark_started(odd: Path) -> bool:
    return bool(list((odd / "tmp").glob(f"{SCRATCH_PREFIX}*/blockmgr-*")))


def is_published(odd: Path) -> bool:
    return (odd / "out/summary.json").exists()


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of the processes with a folder for temporary files below another one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found


MOMENTS: Final = (is_folder_made, is_java_started, is_java_connected, is_spark_started, is_published)


@pytest.mark.parametrize(
    ("moment", "number", "times"),
    [
        (moment, SIGNALS[(place + times) % len(SIGNALS)], times)
        for place, moment in enumerate(MOMENTS)
        for times in (1, 3)
    ],
)
def test_signals_leave_neither_java_nor_folders(
    moment: Callable[[Path], bool], number: signal.Signals, times: int, odd: Path
) -> None:
    with started(odd) as process:
        wait_for(process, lambda: moment(odd))
        for _ in range(times):
            if process.poll() is None:
                process.send_signal(number)
        out, errors = process.communicate()
    assert process.returncode in ({128 + number, 0} if moment is is_published else {128 + number}), errors
    assert [line for line in errors.splitlines() if "/7 " not in line] == []
    assert bool(out) == (process.returncode == 0)
    assert list((odd / "tmp").iterdir()) == []
    wait_until(lambda: processes_in(odd) == [])


def test_a_killed_command_leaves_no_java_and_the_next_one_deletes_its_folder(odd: Path) -> None:
    with started(odd) as process:
        wait_for(process, lambda: is_spark_started(odd))
        process.kill()
        process.communicate()
    wait_until(lambda: processes_in(odd) == [])
    summary_of(run(command(odd), env=environment(odd)))
    assert list((odd / "tmp").iterdir()) == []


def test_a_java_that_is_killed_is_one_line(odd: Path) -> None:
    with started(odd) as process:
        wait_for(process, lambda: is_spark_started(odd))
        java = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_java(path, odd)]
        for one in java:
            os.kill(one, signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 3
    lines = [line for line in errors.splitlines() if "/7 " not in line]
    assert len(lines) == 1, errors
    assert "Java was killed, probably because memory ran short" in lines[0]
    assert list((odd / "tmp").iterdir()) == []
    assert not (odd / "out/summary.json").exists()


def _is_java(cmdline: Path, odd: Path) -> bool:
    try:
        return b"SparkSubmit" in cmdline.read_bytes() and str(odd).encode() in cmdline.read_bytes()
    except OSError:
        return False
