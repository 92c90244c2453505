"""The pages of figures are what the results say, and `make bench` runs what it is told to."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks import aims, figures, sql, sql_page, summary_page
from benchmarks.aims import AT_LEAST, AT_MOST, Finding
from benchmarks.costs_page import LIFE
from benchmarks.pages import DOCS, PAGES
from benchmarks.parts import PARTS
from benchmarks.sections import MARK, filled
from benchmarks.source_loop import ends_in_time
from benchmarks.sql_contenders import divided

from freshq.simulate import ServiceDistribution, Source


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_made_from_the_results(page: str) -> None:
    assert PAGES[page]() == (DOCS / page).read_text("utf-8"), "write it anew: python -m benchmarks --pages"


def test_the_readme_says_what_was_counted() -> None:
    (life,) = [step for step in figures.figures_of("capacity")["steps"] if step["step"] == LIFE]
    readme = " ".join(Path("README.md").read_text("utf-8").split())
    assert f"takes {life['write_units']:.2f} write units in {life['calls']:.2f} calls" in readme
    (four,) = [run for run in figures.figures_of("passed_over")["runs"] if run["claimers"] == 4]
    passed = f"{100 * four['share']:.0f} % of the claims pass over a better task"
    assert f"{passed}, by {four['mean_places']:.1f} places on average" in readme


def test_every_part_can_run_and_its_page_is_there() -> None:
    for name, part in PARTS.items():
        assert find_spec(f"benchmarks.{part.module}"), name
        assert Path("docs", part.page).exists(), name


def test_every_result_belongs_to_a_part_and_says_where_it_was_found() -> None:
    known = {file for part in PARTS.values() for file in part.files}
    found = {file.stem for file in figures.RESULTS.glob("*.json")}
    assert found <= known
    for name in found:
        whole = figures.read(name)
        assert whole.keys() - {"commit"} == {"date", "machine", "figures"}, name
        assert {"cores", "memory_gib", "python", "system"} <= whole["machine"].keys(), name
        assert platform.node() not in json.dumps(whole["machine"]), name


def test_the_page_of_sql_names_what_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _program: None)
    assert sql.missing(dict.fromkeys(sql.PEERS, "1")) == ["pgbench"]
    absent = sql.missing({"procrastinate": "1", "huey": "1"})
    monkeypatch.setattr("shutil.which", lambda program: program)
    assert absent == [*sql.missing({"procrastinate": "1", "huey": "1"}), "pgbench"]
    assert sql.missing(dict.fromkeys(sql.PEERS, "1")) == []
    results = {name: figures.read(name) for name in ("sql", "sql_lasting", "sql_dead_index", "history")}
    written = (DOCS / "sql.md").read_text("utf-8")
    for missing, said in ((absent, True), ([], False)):
        results["sql"]["figures"]["missing"] = missing
        page = " ".join(sql_page.page(written, results).split())
        assert ("Not installed, so not measured: oban, litequeue, pgbench." in page) == said


def test_what_bounds_the_pipeline_comes_from_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures.figures_of("pipeline")
    found["duckdb_seconds"] = [2 * found["spark_warm_parts_seconds"]["read"]]
    large = {"spark_cold_parts_seconds": {"read": 30}, "duckdb_seconds": 20, "spark_cold_seconds": 90}
    changed = {"pipeline": found, "pipeline_large": large}
    monkeypatch.setattr(aims, "is_measured", lambda _name: True)
    monkeypatch.setattr(aims, "figures_of", lambda name: changed.get(name) or figures.figures_of(name))
    bounds = [finding.bound for finding in aims._of_pipeline() if "DuckDB" in finding.what]
    assert ["alone take 0.5 times" in bounds[0], "alone take 1.5 times" in bounds[1]] == [True, True]


def test_an_unknown_part_is_named_beside_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "capacity", "speed"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("no such part: speed\n")
    assert all(f"  {name} " in error and part.what in error for name, part in PARTS.items())


def test_make_passes_the_parts_and_the_peers_on() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "bench", "PARTS=worker cli", "PEERS=python3.12"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - make, by name
    assert shown.splitlines()[-1].endswith("-m benchmarks worker cli --peers python3.12")


def test_parts_run_by_name_and_peers_go_to_those_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command[1:]) if check else None)
    monkeypatch.setattr(bench, "write", list)
    for arguments in (["worker", "cli", "--peers", "python3.12"], [], ["--pages"]):
        monkeypatch.setattr("sys.argv", ["benchmarks", *arguments])
        bench.main()
    default = [name for name, part in PARTS.items() if part.is_default]
    assert ran == [
        ["-m", "benchmarks.worker", "--peers", "python3.12"],
        ["-m", "benchmarks.cli"],
        *(["-m", f"benchmarks.{PARTS[name].module}"] for name in default),
    ]
    assert {PARTS[name].minutes for name in default} == {1}


def test_figures_are_written_with_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "new")
    figures.write("part", {"a": 1}, packages=["pytest"], programs={"server": "1.2"})
    whole = figures.read("part")
    assert whole["figures"] == {"a": 1}
    assert whole["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert whole["machine"]["load_before"] >= 0
    assert whole["machine"]["load"] >= 0
    assert whole["machine"]["versions"] == {"pytest": pytest.__version__, "server": "1.2"}


def test_figures_name_the_commit_and_whether_the_code_was_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - git

    code, result = tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "a.json"
    result.parent.mkdir(parents=True)
    for file in (code, result):
        file.write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "--short", "HEAD")
    result.write_text("2")
    assert figures.commit(tmp_path) == head
    code.write_text("2")
    assert figures.commit(tmp_path) == f"{head}+"


@pytest.mark.parametrize(
    ("found", "relation", "aim", "form", "is_met"),
    [
        (0.6, AT_MOST, 0.6, "{:.2f}", True),
        (0.604, AT_MOST, 0.6, "{:.2f}", True),  # as exactly as it is shown
        (0.61, AT_MOST, 0.6, "{:.2f}", False),
        (1.99, AT_LEAST, 2.0, "{:.2f}", False),
        (2300, AT_MOST, 2000, "{:,.0f}", False),
    ],
)
def test_an_aim_is_met_or_bold(
    found: float, relation: object, aim: float, form: str, *, is_met: bool
) -> None:
    finding = Finding("calls", found, relation, aim, form)  # type: ignore[arg-type]  # one of the two
    assert finding.is_met is is_met
    assert ("**" in finding.row()) is not is_met


MARKED = "before\n<!-- made from benchmarks/results/a.json: costs -->\n\n| old |\n\n<!-- end -->\nafter\n"


def test_a_section_is_made_anew_and_the_text_around_it_stays() -> None:
    made = filled(MARKED, {("a", "costs"): ["| new |"]})
    assert made == MARKED.replace("old", "new")


def test_a_page_and_its_sections_must_fit() -> None:
    with pytest.raises(ValueError, match="no marks around the section 'a: costs'"):
        filled("# Page\n", {("a", "costs"): []})
    with pytest.raises(ValueError, match="nothing makes the section 'a: costs'"):
        filled(MARKED, {})


def test_every_marked_section_is_on_a_page_that_is_made() -> None:
    marked = {page.name for page in DOCS.rglob("*.md") if MARK.search(page.read_text("utf-8"))}
    assert marked
    assert marked <= PAGES.keys()


def test_every_part_has_its_page_made() -> None:
    assert {part.page for part in PARTS.values()} <= PAGES.keys()


def test_a_file_that_there_is_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmeasured() -> list[str]:
        return summary_page.current().partition("Not measured yet: ")[2].partition(".")[0].split(", ")

    assert "cli" not in unmeasured()
    monkeypatch.setattr(summary_page, "is_measured", lambda name: name != "cli" and figures.is_measured(name))
    assert "cli" in unmeasured()


@pytest.mark.parametrize(("number", "parts", "each"), [(32, 2, [16, 16]), (5, 2, [3, 2]), (1, 1, [1])])
def test_workers_and_tasks_are_divided_without_a_rest(number: int, parts: int, each: list[int]) -> None:
    assert divided(number, parts) == each


def test_the_ancestors_loop_waits_for_all_of_a_batch() -> None:
    """Of even tasks it does nearly all; of uneven ones, what the longest of a batch allows."""
    shares = []
    for service in (ServiceDistribution.DET, ServiceDistribution.EXP):
        tasks = Source(12.0, 500.0, 5.0, service=service, seed=3).load()
        shares.append(len(ends_in_time(tasks, 4, 1.0)) / (4 * 500.0))
    # A stagger of 4 starts and a pause for each second of work; the mean longest of 4 is 25/12 of a mean.
    assert shares[0] == pytest.approx(1 / (1 + 0.2 / 15 * 4 + 0.5 / 15), abs=0.03)
    assert shares[1] == pytest.approx(12 / 25, abs=0.1)
