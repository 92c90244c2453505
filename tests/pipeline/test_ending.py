"""Whatever fails after the publication: the summary, the violations, a line and a status of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from freshq_pipeline.cli import Spark, app
from freshq_pipeline.errors import (
    BAD_INPUT_STATUS,
    FAILED_STATUS,
    REPORT_STATUS,
    UNFINISHED_STATUS,
    VIOLATION_STATUS,
    BadInput,
    Unfinished,
)
from freshq_pipeline.report import ending, page
from freshq_pipeline.report.ending import Ending
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.results import NEW, REPORT, SUMMARY
from tests.pipeline.conftest import Pipeline
from tests.pipeline.recording import small, write_lines

COMMAND: Final = Path(sys.executable).parent / "freshq-pipeline"
VIOLATIONS: Final = "freshq-pipeline: ledger violations: 1 new, 1 in all; see the table violations"
PAGE: Final = "freshq_pipeline.report.page"


class PanicException(BaseException):
    """An error of code in Rust, as of the package that draws charts."""


@pytest.fixture(scope="module")
def published(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with events, `in`, and the tables of a run over them with one violation, `out`."""
    folder = tmp_path_factory.mktemp("published")
    tape = small()
    tape.change(401, "a", "PENDING")  # an illegal step
    write_lines(folder / "in/a.json", tape.landed())
    assert pipeline(folder / "in", folder / "out")[NEW] == 1
    return folder


@pytest.fixture
def run(published: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that calls a command as if it had just published the tables."""
    summary = Folder(str(published / "out")).read_json(SUMMARY)
    monkeypatch.setattr("freshq_pipeline.runs.batch.execute", lambda *_arguments: summary)
    monkeypatch.setattr(Spark, "session", lambda *_arguments: nullcontext())
    places = ["--events", str(published / "in"), "--out", str(published / "out")]
    return lambda command="run", *options: CliRunner().invoke(app, [command, *places, *options])


# Parts of the report, each with an error that it may raise.
PARTS: Final[list[tuple[str, BaseException]]] = [
    (f"{PAGE}.published_summary", BadInput("out: summary.json is damaged")),
    (f"{PAGE}._largest", KeyError("tasks")),
    (f"{PAGE}._headlines", ZeroDivisionError("division by zero")),
    (f"{PAGE}.Tables.newest", FileNotFoundError(2, "No such file", "files/minutes/1.parquet")),
    (f"{PAGE}.Tables.all", ValueError("Parquet magic bytes not found in footer")),
    (f"{PAGE}.Tables.largest", MemoryError()),
    (f"{PAGE}.time_steps.short_recording", OverflowError("Python int too large to convert to C long")),
    (f"{PAGE}.charts.fates", TypeError("unhashable type")),
    (f"{PAGE}.charts.backlog", RecursionError("maximum recursion depth exceeded")),
    (f"{PAGE}.charts.waits", IndexError("list index out of range")),
    (f"{PAGE}.charts.freshness", AttributeError("no such attribute")),
    (f"{PAGE}.shed_section", ValueError("cannot convert float NaN to integer")),
    (f"{PAGE}.chain_section", LookupError("hops")),
    (f"{PAGE}.replay_section", UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")),
    (f"{PAGE}.events_of", OverflowError("date value out of range")),
    (f"{PAGE}._quality", KeyError("unknown_fields")),
    (f"{PAGE}.page", AssertionError()),
    (f"{PAGE}._scripts", PanicException("called `Option::unwrap()` on a `None` value")),
    (f"{PAGE}.vl_convert", ImportError("libgcc_s.so.1: cannot open shared object file")),
    ("freshq_pipeline.storage.folder.Folder.write", OSError(28, "No space left on device", "report.html")),
    ("freshq_pipeline.report.ending.violations", KeyError(NEW)),
]  # fmt: skip


def fail(error: BaseException) -> None:
    raise error


def broken(error: BaseException) -> Any:
    return lambda *_arguments, **_named: fail(error)


@pytest.mark.parametrize(("part", "error"), PARTS, ids=[part for part, _ in PARTS])
@pytest.mark.parametrize("as_json", [True, False])
def test_any_error_of_the_report_is_a_status_and_a_line(
    part: str,
    error: BaseException,
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    *,
    as_json: bool,
) -> None:
    if part.endswith(".vl_convert"):
        monkeypatch.setattr("freshq_pipeline.report.ending.load_ahead", lambda: None)
        monkeypatch.setitem(sys.modules, PAGE, None)  # as if it could not be imported
    else:
        monkeypatch.setattr(part, broken(error))
    done = run("run", *(["--json"] if as_json else []))
    assert done.exit_code == REPORT_STATUS
    *before, last = done.stderr.splitlines()
    assert last.startswith("freshq-pipeline: the tables in ")
    assert str(error).split("\n")[0] in last or part.endswith(".vl_convert")
    assert "Traceback" not in done.output
    said = last.removeprefix("freshq-pipeline: ")
    if as_json:
        line = json.loads(done.stdout)
        assert (line[NEW], [" ".join(text.split()) for text in line["problems"]]) == (1, [said])
    else:
        assert said in " ".join(done.stdout.split())
        assert "ledger violations" in done.stdout
    assert before == ([] if part.endswith(".violations") else [VIOLATIONS])


@pytest.mark.parametrize("part", ["show_summary", "json.dumps", "typer.echo", "_emphasize"])
def test_a_summary_that_is_not_printed_is_a_status_and_a_line(
    part: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"freshq_pipeline.report.ending.{part}", broken(OverflowError("year 10000")))
    if part == "_emphasize":
        monkeypatch.setattr(f"{PAGE}.write_report", broken(KeyError("run_id")))
    done = run("run", *(["--json"] if part in ("json.dumps", "typer.echo") else []))
    assert done.exit_code == REPORT_STATUS
    lines = done.stderr.splitlines()
    assert lines[0] == VIOLATIONS
    assert any("the result is not printed: OverflowError: year 10000; see " in line for line in lines)


def test_without_a_failure_there_are_no_problems(run: Callable[..., Result]) -> None:
    done = run("run", "--json")
    assert (done.exit_code, json.loads(done.stdout)["problems"]) == (VIOLATION_STATUS, [])
    assert done.stderr.splitlines() == [VIOLATIONS]


@pytest.mark.parametrize(
    ("part", "error", "status"),
    [
        ("replay_published", BadInput("queue: no task of 'typo'"), BAD_INPUT_STATUS),
        ("replay_published", ValueError("a bug"), UNFINISHED_STATUS),
        ("write_report", ValueError("a bug"), REPORT_STATUS),
        ("differences", KeyError("within"), REPORT_STATUS),
        ("show_replay", KeyError("policy"), REPORT_STATUS),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_replay_that_fails_tells_the_violations_of_its_run(
    part: str, error: Exception, status: int, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch,
    *, as_json: bool,
) -> None:  # fmt: skip
    replaying = "freshq_pipeline.replays.replaying.replay_published"
    monkeypatch.setattr("freshq_pipeline.cli.RunProgress.follow", lambda *_arguments: nullcontext())
    result: dict[str, Any] = {"queues": [], "scenarios": []}
    monkeypatch.setattr(replaying, lambda *_arguments: result)
    places = {"replay_published": replaying, "write_report": f"{PAGE}.write_report"}
    monkeypatch.setattr(places.get(part, f"freshq_pipeline.report.ending.{part}"), broken(error))
    if part != "show_replay":
        monkeypatch.setattr("freshq_pipeline.report.ending.show_replay", lambda _result: None)
    elif as_json:
        status = VIOLATION_STATUS
    done = run("replay", *(["--json"] if as_json else []))
    assert done.exit_code == status
    first, *others = done.stderr.splitlines()
    assert first == VIOLATIONS
    assert len(others) == (status != VIOLATION_STATUS)
    if as_json:
        line = json.loads(done.stdout)
        assert (line[NEW], len(line["problems"])) == (1, len(others))


def test_an_end_of_spark_that_fails_after_the_publication(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def session(*_arguments: object) -> Any:
        yield None
        msg = "Java did not end"
        raise RuntimeError(msg)

    summary = Folder(str(published / "out")).read_json(SUMMARY)
    monkeypatch.setattr(Spark, "session", session)
    monkeypatch.setattr("freshq_pipeline.cli.RunProgress.follow", lambda *_arguments: nullcontext())
    monkeypatch.setattr("freshq_pipeline.runs.batch.execute_plan", lambda *_arguments: summary)
    monkeypatch.setattr(ending.Ending, "report", lambda _ending: None)
    (published / "in/b.json").write_text("")
    places = ["--events", str(published / "in"), "--out", str(published / "out")]
    try:
        done = CliRunner().invoke(app, ["run", *places, "--index-lag-seconds", "0", "--json"])
    finally:
        (published / "in/b.json").unlink()
    assert done.exit_code == UNFINISHED_STATUS
    assert json.loads(done.stdout)[NEW] == 1
    first, last = done.stderr.splitlines()
    assert first == VIOLATIONS
    assert last.endswith("are published, but what follows failed: RuntimeError: Java did not end; run again")


def test_a_batch_that_fails_hides_no_violations_of_earlier_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = Ending(Folder(str(tmp_path)))
    msg = "events: 9 of 9 records are unusable"
    with end.postponed():
        end.batch({NEW: 2, "ledger_violations": 2, "queues": []})
        fail(BadInput(msg))
    with pytest.raises(BadInput):
        end.finish(as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"] == [msg]
    assert said.err.startswith("freshq-pipeline: ledger violations: 2 new, 2 in all")
    nothing = Ending(Folder(str(tmp_path)))
    with pytest.raises(BadInput), nothing.postponed():
        fail(BadInput(msg))


def test_of_several_problems_each_has_a_line_and_the_first_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "write_report", broken(OSError(28, "No space left on device")))
    end = Ending(Folder(str(tmp_path)))
    first = Unfinished("the catalog is gone")
    first.summary = {NEW: 1, "ledger_violations": 1}
    with end.postponed():
        fail(first)
    end.report()
    with pytest.raises(Unfinished) as raised:
        end.finish(as_json=True)
    assert raised.value is first
    said = capsys.readouterr()
    assert len(json.loads(said.out)["problems"]) == 2
    assert [line.partition(" ")[2][:20] for line in said.err.splitlines()] == [
        "ledger violations: 1", f"the tables in {tmp_path}"[:20],
    ]  # fmt: skip


def plant_a_folder(out: Path) -> None:
    (out / REPORT).unlink(missing_ok=True)
    (out / REPORT / "x").mkdir(parents=True)


def plant_a_missing_table(out: Path) -> None:
    for file in (out / "files/ledger").rglob("*.parquet"):
        file.unlink()


def plant_a_damaged_table(out: Path) -> None:
    for file in (out / "files/groups").rglob("*.parquet"):
        file.write_bytes(b"PAR1garbage")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", [plant_a_folder, plant_a_missing_table, plant_a_damaged_table])
def test_the_installed_command(plant: Callable[[Path], None], pipeline: Pipeline, tmp_path: Path) -> None:
    """The run finds nothing new, so that no Spark starts."""
    write_lines(tmp_path / "in/a.json", small().landed())
    pipeline(tmp_path / "in", tmp_path / "out")
    plant(tmp_path / "out")
    places = ("--events", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    run = [str(COMMAND), "run", *places, "--index-lag-seconds", "0", "--json"]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert done.returncode == REPORT_STATUS, done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.stderr == f"freshq-pipeline: {problem}\n"
    report = [str(COMMAND), "report", "--out", str(tmp_path / "out")]
    again = subprocess.run(report, check=False, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (REPORT_STATUS, "")
    assert again.stderr.split(":")[:3] == done.stderr.split(":")[:3]


@pytest.mark.timeout(600)
def test_an_output_that_cannot_be_written(pipeline: Pipeline, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", small().landed())
    pipeline(tmp_path / "in", tmp_path / "out")
    run = f"'{COMMAND}' run --events '{tmp_path}/in' --out '{tmp_path}/out' --index-lag-seconds 0"
    ended = {}
    for target in (">/dev/full", "--json >/dev/full", "2>/dev/full", "2>&-", ">&-", "| true"):
        script = f"set -o pipefail; {run} {target}"
        done = subprocess.run(["/bin/bash", "-c", script], check=False, capture_output=True, text=True)
        ended[target] = done.returncode
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == (done.returncode == REPORT_STATUS)
    full = {">/dev/full": REPORT_STATUS, "--json >/dev/full": REPORT_STATUS, "| true": REPORT_STATUS}
    assert ended == full | {"2>/dev/full": 0, "2>&-": 0, ">&-": 0}
    assert FAILED_STATUS not in ended.values()
