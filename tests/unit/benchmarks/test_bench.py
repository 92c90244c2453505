"""The pages of figures are what the results say, and `make bench` runs what it is told to."""

from __future__ import annotations

import json
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks import aims, figures, library_pages, sql, summary_page
from benchmarks.aims import AT_LEAST, AT_MOST, Finding, missed, of_rounds, tables
from benchmarks.costs_page import LIFE
from benchmarks.figures import PARTS
from benchmarks.overload_setting import ends_in_time
from benchmarks.pages import DOCS, PAGES, made
from benchmarks.render import (
    END,
    MARK,
    Block,
    Code,
    Figure,
    Heading,
    Prose,
    Table,
    across,
    columns,
    filled,
    markdown,
)
from benchmarks.sql import divided

from freshq.simulate import ServiceDistribution, Source


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_made_from_the_results(page: str) -> None:
    assert made(page) == (DOCS / page).read_text("utf-8"), "write it anew: python -m benchmarks --pages"


def test_the_readme_says_what_was_counted() -> None:
    (life,) = [step for step in figures.figures_of("capacity")["steps"] if step["step"] == LIFE]
    readme = " ".join(Path("README.md").read_text("utf-8").split())
    assert f"takes {life['write_units']:.2f} write units in {life['calls']:.2f} calls" in readme
    four = summary_page.passed_over_runs()[4]
    shares = [100 * run["share"] for run in four]
    places = statistics.median(run["mean_places"] for run in four)
    passed = f"{statistics.median(shares):.0f}% ({min(shares):.0f} to {max(shares):.0f}%) of claims"
    assert f"{passed} skip a newer task, by {places:.1f} positions on average" in readme
    assert len(four) >= 5


def test_every_part_can_run_and_its_page_is_there() -> None:
    for name, part in PARTS.items():
        module, _, function = part.module.partition(":")
        program = Path("benchmarks", f"{module}.py").read_text("utf-8")
        assert f"\ndef {function or 'main'}(" in program, name
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
    monkeypatch.setattr(library_pages, "read", results.get)
    for missing, said in ((absent, True), ([], False)):
        results["sql"]["figures"]["missing"] = missing
        page = " ".join(markdown(library_pages.sql_sections()["sql", "postgresql"]).split())
        assert ("Not installed, so not measured: oban, litequeue, pgbench." in page) == said


def test_what_bounds_the_pipeline_comes_from_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures.figures_of("pipeline")
    found["spark_warm_parts_seconds"] = {"read": 7, "steps": 2, "tasks": 3}
    found["duckdb_seconds"] = [10]
    parts = {"read": 70, "steps": 10, "tasks": 20}
    large = {"spark_cold_parts_seconds": parts, "duckdb_seconds": 20, "spark_cold_seconds": 90}
    changed = {"pipeline": found, "pipeline_large": large}
    monkeypatch.setattr(aims, "is_measured", lambda _name: True)
    monkeypatch.setattr(aims, "figures_of", lambda name: changed.get(name) or figures.figures_of(name))
    bounds = [finding.bound for finding in aims._of_pipeline() if "DuckDB" in finding.what]
    assert ["alone takes 0.5 times" in bounds[0], "alone takes 1.5 times" in bounds[1]] == [True, True]


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
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1].endswith("-m benchmarks worker cli --peers python3.12")


def test_parts_run_by_name_and_peers_go_to_those_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command[1:]) if check else None)
    monkeypatch.setattr(bench, "write", list)
    for arguments in (
        ["worker", "--peers", "python3.12"],
        ["cli", "--peers", "python3.12", "--rounds", "2"],
        [],
        ["--pages"],
    ):
        monkeypatch.setattr("sys.argv", ["benchmarks", *arguments])
        bench.main()
    default = [name for name, part in PARTS.items() if part.is_default]
    programs = [command[1].removeprefix("from benchmarks.").partition(" as ")[0] for command in ran]
    assert programs[:2] == ["worker import main", "coldstart import cli_main"]
    assert "overload import simulator_main" in programs[2:]
    assert len(programs) == 2 + len(default)
    assert ran[0][2:] == ["--peers", "python3.12"]
    assert ran[1][2:] == ["--rounds", "2"]
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
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

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
    assert ("**" in finding.row()[-1]) is not is_met


def test_a_figure_of_rounds_is_their_median_with_the_lowest_and_the_highest() -> None:
    finding = of_rounds("oban", [2.1, 1.9, 4.0], AT_LEAST, 2.0, "why")
    assert finding.row() == ["oban", "at least 2.00", "2.10 (1.90 to 4.00)"]


def test_a_topic_heads_its_table() -> None:
    apart, of_topic = Finding("one", 1, AT_MOST, 2), Finding("two", 3, AT_MOST, 2, topic="time / another")
    assert tables([apart, of_topic]) == [
        Table(["figure", "aim", "found"], [["one", "at most 2.00", "1.00"]]),
        Table(["time / another", "aim", "found"], [["two", "at most 2.00", "**3.00**"]]),
    ]


def test_what_misses_one_aim_for_one_reason_is_one_item() -> None:
    found = [
        Finding("SQLite", 3, AT_MOST, 2, bound="Disk.", topic="time"),
        Finding("alone", 5, AT_MOST, 2, bound="Disk."),
        Finding("met", 1, AT_MOST, 2, bound="Disk.", topic="time"),
        Finding("MariaDB", 4, AT_MOST, 2, bound="Disk.", topic="time"),
        Finding("memory", 9, AT_MOST, 2, bound="Copies.", topic="time"),
    ]
    assert list(missed(found)) == [
        "- Time, where the aim is at most 2.00: SQLite 3.00; MariaDB 4.00. Disk.",
        "- Alone: 5.00, where the aim is at most 2.00. Disk.",
        "- Time, where the aim is at most 2.00: memory 9.00. Copies.",
    ]
    assert list(missed(found[2:3])) == ["Every aim above is met."]


def test_every_miss_says_what_bounds_it() -> None:
    found = [*aims.counted(), *aims.simulated(), *aims.timed()]
    assert [each.what for each in found if not each.is_met and not each.bound] == []
    assert len({(each.topic, each.what) for each in found}) == len(found)


def test_the_anchors_of_what_bounds_a_claim_are_headings() -> None:
    growth = (DOCS / "contributing/growth.md").read_text("utf-8")
    titles = re.findall(r"^## (.+)$", growth, re.MULTILINE)
    headings = {title.lower().replace(",", "").replace(" ", "-") for title in titles}
    anchors = {each.bound.partition("growth.md#")[2].partition(")")[0] for each in aims._of_growth()}
    assert anchors
    assert anchors <= headings


def test_misses_of_growth_are_among_what_misses_its_aim(monkeypatch: pytest.MonkeyPatch) -> None:
    def ratios(highest: float) -> list[Finding]:
        claims = [
            {"situation": situation, "size": size, "limit": 1, "ratio": ratio}
            for situation in ("waiting", "groups")
            for size, ratio in ((10, 1.0), (100, 0.8), (1000, highest))
        ]
        monkeypatch.setattr(aims, "is_measured", lambda name: name == "growth_sqlite")
        monkeypatch.setattr(aims, "figures_of", lambda _name: {"figures": claims})
        return [*aims._of_growth()]

    assert [each.is_met for each in ratios(1.2)] == [True, True]
    assert [each.is_met for each in ratios(1.9)] == [False, True]
    assert [each.row() for each in ratios(2.5)] == [
        ["SQLite: tasks that wait", "at most 1.20", "**2.50** (lowest 0.80)"],
        ["SQLite: groups", "at most 2.00", "**2.50** (lowest 0.80)"],
    ]


def test_what_bounds_a_cold_start_comes_from_its_figures() -> None:
    found = figures.figures_of("coldstart")
    found["shares_of_imports"] = {"small": 0.01, "numpy": 0.5, "c": 0.1, "b": 0.2, "a": 0.19}
    bound = aims._of_cold_starts(found).bound
    assert bound.endswith("of these, numpy takes 50 %, b takes 20 %, a takes 19 %, c takes 10 %.")


def test_connections_have_a_row_only_if_they_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(counts: list[int]) -> list[list[str]]:
        rounds = [{"tasks_per_second": 1.0, **({"connections": each} if each else {})} for each in counts]
        of_store = {"8": {"Worker": rounds}, "256": {"Worker": rounds[:1]}}
        monkeypatch.setattr(aims, "figures_of", lambda _name: {"postgresql": of_store, "sqlite": {}})
        return [each.row() for each in aims._connections()]

    what = "connections of a `Worker` with 1 to 256 slots at most, PostgreSQL"
    assert rows([0, 0]) == []
    assert rows([3, 9]) == [[what, "at most 10", "9"]]
    assert rows([11, 9]) == [[what, "at most 10", "**11**"]]


def test_overload_is_judged_close_to_the_capacity_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share below the aim is bold at 1.1 times the capacity; so is an order that does not recover."""
    found = figures.figures_of("overload")
    for one in found["by_load"]:
        one["mean"] = 0.95 if one["load"] == 1.1 else 0.999
    for one in found["after_burst"]:
        one["recovery_seconds"] = None if one["order"] == "LIFO" else 5.0
    monkeypatch.setattr(aims, "figures_of", lambda _name: found)
    misses = {each.what: each.shown for each in aims.simulated() if not each.is_met}
    assert misses == {
        "LIFO at 1.1 times the capacity": "0.950",
        "adaptive at 1.1 times the capacity": "0.950",
        "LIFO": "inf",
    }


def test_the_text_beside_the_application_takes_its_numbers_from_the_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = figures.figures_of("overload")
    for one in found["application"]:
        one |= {"slot_seconds": 3.25, "machine_load": 7.5}
        one["arrived"] = 60 if one["offered"] <= 1 else one["arrived"]
        one["load"] = 0.5
    changed = {"overload": found}
    monkeypatch.setattr(
        summary_page, "figures_of", lambda name: changed.get(name) or figures.figures_of(name)
    )
    page = " ".join(markdown(summary_page.summary_page()["overload", "application"]).split())
    assert "in a slot: 3.25 to 3.25 s" in page
    assert "load average was 7.5 to 7.5" in page
    assert "60 to 60 arrived: three tasks that end after the last second can be 2.5 points" in page


def test_blocks_become_markdown() -> None:
    rows = [{"name": "a", "rates": [3.0, 1.0, 2.0], "rest": None}]
    blocks: list[Block] = [
        Heading("Title", 3),
        Prose("one\n    two"),
        Prose("- first\n- second"),
        columns(rows, {"queue": "{name}", "rate": "{rates:.1f}", "rest": "{rest}"}),
        across("policy", {"LIFO": {1: 0.5}, "FIFO": {2: 0.25}}, ".2f", "at {}".format),
        Table(["a", "b"], [["c", "d"]], texts=2),
        Figure("plot.png", "A plot"),
        Code("x = 1", "python"),
    ]
    assert markdown(blocks).split("\n\n") == [
        "### Title",
        "one two",
        "- first\n- second",
        "| queue | rate | rest |\n| --- | ---: | ---: |\n| a | 2.0 (1.0 to 3.0) |  |",
        "| policy | at 1 | at 2 |\n| --- | ---: | ---: |\n| LIFO | 0.50 |  |\n| FIFO |  | 0.25 |",
        "| a | b |\n| --- | --- |\n| c | d |",
        "![A plot](plot.png)",
        "```python\nx = 1\n```",
    ]


MARKED = "before\n<!-- made from benchmarks/results/a.json: costs -->\n\n| old |\n\n<!-- end -->\nafter\n"


def test_a_section_is_made_anew_and_the_text_around_it_stays() -> None:
    made = filled(MARKED, {("a", "costs"): [Prose("| new |")]})
    assert made == MARKED.replace("old", "new")
    assert END in made


def test_a_page_and_its_sections_must_fit() -> None:
    with pytest.raises(ValueError, match="no marks around the section 'a: costs'"):
        filled("# Page\n", {("a", "costs"): []})
    with pytest.raises(ValueError, match="nothing makes the section 'a: costs'"):
        filled(MARKED, {})


def test_every_marked_section_is_on_a_page_that_is_made() -> None:
    marked = {
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if MARK.search(page.read_text("utf-8"))
    }
    assert marked
    assert marked <= PAGES.keys()


def test_every_part_has_its_page_made() -> None:
    assert {part.page for part in PARTS.values()} <= PAGES.keys()


def test_a_file_that_there_is_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmeasured() -> list[str]:
        return (
            markdown(aims.aims_page()["capacity", "machines"])
            .partition("Not measured yet: ")[2]
            .partition(".")[0]
            .split(", ")
        )

    assert "cli" not in unmeasured()
    monkeypatch.setattr(aims, "is_measured", lambda name: name != "cli" and figures.is_measured(name))
    assert "cli" in unmeasured()


@pytest.mark.parametrize(("number", "parts", "each"), [(32, 2, [16, 16]), (5, 2, [3, 2]), (1, 1, [1])])
def test_workers_and_tasks_are_divided_without_a_rest(number: int, parts: int, each: list[int]) -> None:
    assert divided(number, parts) == each


def test_the_prototypes_loop_waits_for_all_of_a_batch() -> None:
    """Of even tasks it does nearly all; of uneven ones, what the longest of a batch allows."""
    shares = []
    for service in (ServiceDistribution.DET, ServiceDistribution.EXP):
        tasks = Source(12.0, 500.0, 5.0, service=service, seed=3).load()
        shares.append(len(ends_in_time(tasks, 4, 1.0)) / (4 * 500.0))
    # A stagger of 4 starts and a pause for each second of work; the mean longest of 4 is 25/12 of a mean.
    assert shares[0] == pytest.approx(1 / (1 + 0.2 / 15 * 4 + 0.5 / 15), abs=0.03)
    assert shares[1] == pytest.approx(12 / 25, abs=0.1)
