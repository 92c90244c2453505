"""The archive of Java's classes is made once for each Java and Spark, and can only save time."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from freshq_pipeline.spark.java import DRAFT_SECONDS, MOST_TRIES, ClassArchive, class_archive

if TYPE_CHECKING:
    from pathlib import Path


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
    archive = class_archive(java)
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
    assert not second.draft.exists()
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
        assert not again.draft.exists()
    assert start(java) == ClassArchive((), again.file)


def test_another_java_makes_its_own_and_old_ones_are_deleted(java: Path) -> None:
    files = []
    for age_seconds, version in ((300, "17.0.1"), (200, "17.0.02"), (100, "17.0.003")):
        (java.parents[1] / "lib/modules").write_text(version)
        files.append(made(java))
        then = files[-1].stat().st_mtime - age_seconds
        os.utime(files[-1], (then, then))
    assert [file.exists() for file in files] == [False, True, True]
    assert start(java).options == (f"-XX:SharedArchiveFile={files[-1]}",)


def test_drafts_of_killed_processes_are_deleted_but_not_those_in_work(java: Path) -> None:
    first = start(java).file.parent
    left, in_work = first / "classes-a.1.draft", first / "classes-a.2.draft"
    for draft in (left, in_work):
        draft.touch()
    then = left.stat().st_mtime - DRAFT_SECONDS - 1
    os.utime(left, (then, then))
    made(java)
    assert (left.exists(), in_work.exists()) == (False, True)


def test_there_is_none_with_other_classes_or_a_cache_that_is_read_only(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(tmp_path))
        assert class_archive(java) is None
    (tmp_path / "cache").write_text("not a folder")
    assert class_archive(java) is None
    assert class_archive(tmp_path / "bin/java") is None


def test_java_starts_with_a_broken_archive(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no Java but the bundled one")
    (tmp_path / "broken.jsa").write_bytes(b"\0" * 4096)
    started = subprocess.run(
        [java, f"-XX:SharedArchiveFile={tmp_path}/broken.jsa", "-version"], capture_output=True, check=False
    )
    assert started.returncode == 0
