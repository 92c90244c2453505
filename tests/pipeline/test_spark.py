"""The start of Spark, and the plans of its work."""

import fcntl
import os
import re
import shutil
import subprocess
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from freshq_pipeline.gold.inversions import CLAIM, inversions
from freshq_pipeline.gold.minutes import minutes
from freshq_pipeline.gold.steps import distinct_steps, gathered
from freshq_pipeline.gold.tasks import lives, tasks
from freshq_pipeline.gold.totals import totals_of_steps, worked
from freshq_pipeline.ingest.sources import read_copies, read_records
from freshq_pipeline.runs.batch import RunPlan, execute
from freshq_pipeline.runs.progress import RunProgress
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.schemas import EVENT, Format, ddl
from freshq_pipeline.spark.environment import KEPT, java_environment
from freshq_pipeline.spark.java import DRAFT_SECONDS, MOST_TRIES, ClassArchive, class_archive, java_home
from freshq_pipeline.spark.scratch import LOCKLESS_SECONDS, prune_scratch
from freshq_pipeline.spark.session import adapt, session_beside
from freshq_pipeline.spark.tuning import (
    HUGE,
    INFLATION,
    LARGE,
    LARGE_BYTES,
    MEDIUM,
    MEDIUM_BYTES,
    SMALL,
    SMALL_BYTES,
    Tuning,
    tuning_for,
    uncompressed_bytes,
)
from freshq_pipeline.storage.days import DAY_US, HOUR_US, Day, Hour
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State
from freshq_pipeline.storage.table_files import columns_with_day
from tests.pipeline.conftest import Pipeline, tuned


@pytest.mark.parametrize(
    ("input_bytes", "chosen"),
    [
        (0, SMALL), (SMALL_BYTES, SMALL), (SMALL_BYTES + 1, MEDIUM), (MEDIUM_BYTES, MEDIUM),
        (MEDIUM_BYTES + 1, LARGE), (LARGE_BYTES, LARGE), (LARGE_BYTES + 1, HUGE), (1 << 40, HUGE),
    ],
)  # fmt: skip
def test_settings_by_size(input_bytes: int, chosen: Tuning) -> None:
    assert tuning_for(input_bytes) is chosen


def test_compressed_files_count_as_what_they_inflate_to() -> None:
    assert uncompressed_bytes({}) == 0
    assert uncompressed_bytes({"a.json": 100, "b.json.gz": 10}) == 100 + 10 * INFLATION


def test_open_hours_of_earlier_runs_count() -> None:
    hours = {0: Hour(0, DAY_US, events=9), 3: Hour(0, 1, events=1)}
    days = {
        0: Day({"1": MEDIUM_BYTES // INFLATION}, hours=hours),
        1: Day({"1": 1}, hours={24: Hour(0, 3 * DAY_US)}),
    }
    before = State("1", "in", "landed", files={"old": [MEDIUM_BYTES, 0]}, days=days, as_of_us=DAY_US)
    files = {"old": (MEDIUM_BYTES, 0), "new": (100, 0)}
    assert RunPlan(None, files, ["new"]).tuning() is SMALL
    assert RunPlan(None, files, ["new", "old"]).tuning() is LARGE
    # An hour with nine tenths of the first day is open; later it is over, unless all days may be computed.
    assert RunPlan(before, files, ["new"]).tuning() is MEDIUM
    before.as_of_us = DAY_US + HOUR_US + 1
    assert RunPlan(before, files, ["new"]).tuning() is SMALL
    assert RunPlan(before, files, ["new"], again=True).tuning() is LARGE


@pytest.mark.parametrize(("size_bytes", "chosen"), [(2, SMALL), (LARGE_BYTES + 1, HUGE)])
def test_a_run_starts_spark_with_them_and_says_so(size_bytes: int, chosen: Tuning, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/a.json").open("wb") as file:
        file.truncate(size_bytes)
    shown, given = StringIO(), list[Any]()

    def session(tuning: Tuning) -> Any:
        given.append(tuning)
        raise InterruptedError

    request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))
    with (
        RunProgress(Console(file=shown, force_terminal=True, width=120)) as progress,
        pytest.raises(InterruptedError),
    ):
        execute(request, session, progress)
    assert given == [chosen]
    assert f"1/7 starting Spark for a {chosen.name} input" in shown.getvalue()


def test_spark_and_its_java_have_them(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    options = list(java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(SMALL.java) <= set(options)
    assert not set(HUGE.java) & set(options)
    configured = spark.sparkContext.getConf()
    assert {name: configured.get(name) for name in SMALL.spark} == SMALL.spark


@pytest.mark.timeout(600)  # runs of Spark that compile, on a machine that may be busy
def test_a_run_compiles_only_what_no_earlier_run_has(
    pipeline: Pipeline, spark: SparkSession, two_days_folder: Path, tmp_path: Path
) -> None:
    jvm: Any = spark.sparkContext._jvm
    classes = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = [classes.getCount()]
    with tuned(spark, LARGE):
        for turn in range(2):
            pipeline(two_days_folder / "events", tmp_path / f"{turn}")
            counts.append(classes.getCount())
    first, second = (after - before for before, after in pairwise(counts))
    assert first > 100, "Spark would keep these classes without a setting"
    assert second <= first / 10


def test_java_is_asked_once_for_a_function(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    sent, send = [], client.send_command

    def note(command: str, *more: Any, **named: Any) -> Any:
        sent.append(command)
        return send(command, *more, **named)

    monkeypatch.setattr(client, "send_command", note)
    for _ in range(2):
        sent.clear()
        F.coalesce(F.col("a"), F.lit(1)).isin("b")
    assert sent
    assert not [command for command in sent if command.startswith("r\n")]


PARTITIONS = 3
AS_OF_US = 1_767_225_600_000_000
BY_TASK = re.compile(r"Exchange hashpartitioning\(task_id#\d+L?(.*, life#\d+)?, \d+\)")
ONE_PARTITION = "SinglePartition"
PYTHON = ("Python", "Pandas", "InArrow")


def plan_of(table: DataFrame) -> str:
    return str(table._jdf.queryExecution().executedPlan().toString())


@pytest.fixture
def steps(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Steps of one file: without files the optimizer knows that the result is empty."""
    (tmp_path / "a.json").write_text("{}\n")
    events = spark.read.schema(ddl(EVENT)).json(str(tmp_path / "a.json"))
    return distinct_steps(events, PARTITIONS)


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """The table `tasks` in the form in which the other tables read it."""
    return spark.read.schema(ddl(columns_with_day("tasks"))).json(str(tmp_path / "a.json"))


def test_one_shuffle_by_task(steps: DataFrame) -> None:
    # Lives are sorted for aggregation within the same partitions: hashing such wide rows is slower.
    for table, sorts in ((steps, 1), (lives(steps), 2)):
        plan = plan_of(table)
        assert len(BY_TASK.findall(plan)) == 1
        assert plan.count("Exchange") == 1
        assert plan.count("Sort [task_id") == sorts


def test_lives_are_not_shuffled_again_for_inversions(spark: SparkSession, steps: DataFrame) -> None:
    threshold = "spark.sql.autoBroadcastJoinThreshold"
    before = str(spark.conf.get(threshold))
    spark.conf.set(threshold, "-1")  # as with millions of lives, when neither side of the join is small
    try:
        plan = plan_of(tasks(lives(steps), inversions(steps, AS_OF_US), AS_OF_US, F.lit(0)))
    finally:
        spark.conf.set(threshold, before)
    assert "SortMergeJoin" in plan
    # Only the inversions are shuffled: by task and life to be distinct, and then to the lives.
    assert len([life for life in BY_TASK.findall(plan) if life]) == 1


def test_nothing_runs_in_one_partition(steps: DataFrame, written: DataFrame) -> None:
    inverted = inversions(steps, AS_OF_US)
    made = {
        "tasks": tasks(lives(steps), inverted, AS_OF_US, F.lit(0)),
        "minutes": minutes(steps, written, AS_OF_US),
        "workers": worked(steps),
    }
    for name, table in made.items():
        plan = plan_of(table)
        assert ONE_PARTITION not in plan, name
        # Spark has no operator for inversions.
        assert (name == "tasks") == any(word in plan for word in PYTHON), name


def test_small_inputs_are_not_shuffled(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    own = session_beside(spark)
    adapt(own, SMALL)

    def read(columns: dict[str, str]) -> DataFrame:
        return gathered(own.read.schema(ddl(columns)).json(str(tmp_path / "a.json")))

    steps = distinct_steps(read(EVENT), 1)
    made = {
        "tasks": tasks(lives(steps), read(CLAIM), AS_OF_US, F.lit(0)),
        "minutes": minutes(steps, read(columns_with_day("tasks")), AS_OF_US),
        "totals": totals_of_steps(steps),
    }
    shuffles = {name: plan_of(table).count("Exchange hashpartitioning") for name, table in made.items()}
    assert shuffles == dict.fromkeys(made, 0)


def test_reading_takes_neither_a_shuffle_nor_python(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    for read in (read_records, read_copies):
        plan = plan_of(read(spark, [str(tmp_path / "a.json")], Format.LANDED))
        assert "Exchange" not in plan
        assert not any(word in plan for word in PYTHON)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program of a Java that has an image of its modules, and use a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("bin", "lib"):
        (tmp_path / "java" / name).mkdir(parents=True)
    (tmp_path / "java/lib/modules").write_bytes(b"17")
    (tmp_path / "java/bin/java").touch()
    return tmp_path / "java/bin/java"


def start(java: Path) -> ClassArchive:
    scratch = java.parents[2] / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # it ends with each process
    scratch.mkdir()
    archive = class_archive(java, scratch)
    assert archive is not None
    return archive


def made(java: Path) -> Path:
    """Make the archive, as the second start does, and return it."""
    start(java)
    second = start(java)
    assert second.draft is not None
    assert second.options == (f"-XX:ArchiveClassesAtExit={second.draft}",)
    second.draft.write_text("classes")
    second.keep(ended_well=True)
    return second.file


def test_the_second_start_makes_it_and_later_ones_use_it(java: Path) -> None:
    assert start(java).options == ()
    interrupted = start(java)  # before Java ended
    assert interrupted.draft is not None
    assert not interrupted.file.exists()
    file = made(java)
    assert file.read_text() == "classes"
    assert start(java).options == (f"-XX:SharedArchiveFile={file}",)


@pytest.mark.parametrize(("written", "ended_well"), [(True, False), (False, True)])
def test_a_java_that_does_not_make_it_is_asked_some_times(
    java: Path, *, written: bool, ended_well: bool
) -> None:
    start(java)
    for _ in range(MOST_TRIES):
        again = start(java)
        assert again.draft is not None
        if written:
            again.draft.write_text("the first half")
        again.keep(ended_well=ended_well)
        assert not again.file.exists()
    assert start(java) == ClassArchive((), again.file)


def test_another_java_makes_its_own_and_old_ones_are_deleted(java: Path) -> None:
    files = []
    for age_seconds, version in ((300, "17.0.1"), (200, "17.0.02"), (100, "17.0.003")):
        (java.parents[1] / "lib/modules").write_text(version)
        files.append(made(java))
        then = files[-1].stat().st_mtime - age_seconds
        os.utime(files[-1], (then, then))
    assert start(java).options == (f"-XX:SharedArchiveFile={files[-1]}",)
    assert [file.exists() for file in files] == [False, True, True]


def test_runs_that_fail_or_are_killed_leave_no_archive_in_the_cache(java: Path) -> None:
    start(java)
    cache = start(java).file.parent
    killed = start(java)
    assert killed.draft is not None
    killed.draft.write_bytes(b"0" * 1000)
    copying = cache / ".classes-a.jsa.1"
    copying.touch()
    assert start(java).draft == killed.draft  # another process has another scratch folder
    assert not killed.draft.exists()
    assert copying.exists()  # it may be in work
    then = copying.stat().st_mtime - DRAFT_SECONDS - 1
    os.utime(copying, (then, then))
    start(java)
    assert [path.suffix for path in cache.iterdir()] == [".started"]


def test_folders_of_killed_processes_are_deleted_but_not_those_in_use(tmp_path: Path) -> None:
    names = ("killed", "in-use", "old", "starting", "other")
    killed, in_use, old, starting = (tmp_path / f"freshq-pipeline-{name}" for name in names[:-1])
    other = tmp_path / "other"
    for folder in (killed, in_use, old, starting, other):
        (folder / "blockmgr").mkdir(parents=True)
        (folder / "lock").write_text("" if folder in (old, starting) else "locked")
    then = old.stat().st_mtime - LOCKLESS_SECONDS - 1
    os.utime(old, (then, then))
    with (in_use / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prune_scratch(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            path.name for path in (in_use, starting, other)
        )
    prune_scratch(tmp_path)
    assert not in_use.exists()


def test_there_is_none_without_a_cache_that_can_be_used(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert class_archive(java, tmp_path) is None
    assert class_archive(tmp_path / "bin/java", tmp_path) is None
    # Java takes a colon for the end of a path.
    for cache in (str(tmp_path / "a:b"), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert class_archive(java, tmp_path) is None


def test_java_starts_with_a_broken_archive(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no Java but the bundled one")
    (tmp_path / "broken.jsa").write_bytes(b"\0" * 4096)
    started = subprocess.run(
        [java, f"-XX:SharedArchiveFile={tmp_path}/broken.jsa", "-version"], capture_output=True, check=False
    )
    assert started.returncode == 0


def test_java_gets_nothing_of_the_environment_by_accident(tmp_path: Path) -> None:
    kept = {name: name.lower() for name in KEPT}
    others = (
        "SPARK_REMOTE",
        "PYSPARK_SUBMIT_ARGS",
        "HADOOP_CONF_DIR",
        "JAVA_TOOL_OPTIONS",
        "AWS_PROFILE",
        "x",
    )
    given = kept | dict.fromkeys(others, "theirs") | {"LC_ALL": "C", "JAVA_HOME": "old", "TMPDIR": "old"}
    made = java_environment(given, tmp_path, Path("/java"))
    assert not [name for name, value in made.items() if value == "theirs"]
    assert kept.items() <= made.items()
    assert (made["JAVA_HOME"], made["TMPDIR"], made["LC_ALL"]) == ("/java", str(tmp_path), "C.UTF-8")
    assert "JAVA_HOME" not in java_environment(given, tmp_path, None)
    assert java_environment(given, tmp_path, None, "yarn")["HADOOP_CONF_DIR"] == "theirs"
    assert java_environment({}, tmp_path, None)["PATH"]


def test_a_java_that_cannot_run_spark_gives_way_to_one_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("old", "1.8.0_402"), ("new", "21.0.4")):
        program = tmp_path / name / "bin/java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{tmp_path}/new/bin:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-javaagent:/nowhere.jar")
    assert java_home(tmp_path / "launcher") is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert java_home(tmp_path / "launcher") == tmp_path / "new"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "old/bin"))
    assert java_home(tmp_path / "launcher") == tmp_path / "launcher"
