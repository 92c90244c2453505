"""The pages of figures agree with the results, and `make bench` runs the named parts."""

import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks import aims, figures, library_pages
from benchmarks.aims import Aim
from benchmarks.costs_page import LIFE
from benchmarks.figures import PARTS, in_turns
from benchmarks.overload_setting import ends_in_time
from benchmarks.pages import DOCS, PAGES, made, sections_of
from benchmarks.render import END, MARK, Block, Prose, Table, across, columns, filled, markdown
from benchmarks.sql import divided

from freshq.simulate import ServiceDistribution, Source


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_made_from_the_results(page: str) -> None:
    assert made(page) == (DOCS / page).read_text("utf-8"), "write it anew: python -m benchmarks --pages"


def test_the_readme_says_what_was_counted() -> None:
    (life,) = [step for step in figures.figures_of("capacity")["steps"] if step["step"] == LIFE]
    readme = " ".join(Path("README.md").read_text("utf-8").split())
    assert f"takes {life['write_units']:.2f} write units in {life['calls']:.2f} calls" in readme
    four = library_pages.passed_over_runs()[4]
    shares = [100 * run["share"] for run in four]
    places = statistics.median(run["mean_places"] for run in four)
    passed = f"{statistics.median(shares):.0f}% ({min(shares):.0f} to {max(shares):.0f}%) of claims"
    assert f"{passed} skip a newer task, by {places:.1f} positions on average" in readme
    assert len(four) >= 5


def test_every_part_can_run_and_its_page_is_there() -> None:
    for name, part in PARTS.items():
        module, _, function = part.function.partition(":")
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


def test_a_page_names_the_queues_that_were_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {name: figures.read(name) for name in ("worker", "worker_two", "distance", "wake")}
    monkeypatch.setattr(library_pages, "read", results.__getitem__)
    for missing, said in ((["oban", "huey"], True), ([], False)):
        results["worker"]["figures"]["missing"] = missing
        page = " ".join(markdown(library_pages.throughput_page()["worker", "PostgreSQL"]).split())
        assert ("Not installed, so not measured: oban, huey." in page) == said


def test_what_bounds_the_pipeline_comes_from_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures.figures_of("pipeline")
    found["spark_warm_parts_seconds"] = {"read": 7, "steps": 2, "tasks": 3}
    found["duckdb_seconds"] = [10]
    parts = {"read": 70, "steps": 10, "tasks": 20}
    large = {"spark_cold_parts_seconds": parts, "duckdb_seconds": 20, "spark_cold_seconds": 90}
    changed = {"pipeline": found, "pipeline_large": large}
    monkeypatch.setattr(aims, "figures_of", lambda name: changed.get(name) or figures.figures_of(name))
    bounds = [aim.bound for aim in aims.of_pipeline() if "DuckDB" in aim.what]
    assert ["alone takes 0.5 times" in bounds[0], "alone takes 1.5 times" in bounds[1]] == [True, True]


def test_an_unknown_part_is_named_beside_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "capacity", "speed"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("unknown part: speed\n")
    assert all(f"  {name} " in error and part.what in error for name, part in PARTS.items())


def test_make_passes_the_parts_and_the_peers_on() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "bench", "PARTS=worker cli", "PEERS=python3.12"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1].endswith("-m benchmarks worker cli --peers python3.12")


def test_parts_run_by_name_and_peers_go_to_those_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command[1:]) if check else None)
    monkeypatch.setattr(bench, "write", list)
    monkeypatch.setattr(bench, "sections_of", str)
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
    assert programs[:2] == ["worker import main", "coldstart import commands"]
    assert "overload import simulator" in programs[2:]
    assert len(programs) == 2 + len(default)
    assert ran[0][2:] == ["--peers", "python3.12"]
    assert ran[1][2:] == ["--rounds", "2"]
    assert {PARTS[name].minutes for name in default} == {1}


def test_figures_are_written_with_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "new")
    monkeypatch.setattr(figures, "PACKAGES", ["pytest"])
    figures.write("part", {"a": 1})
    whole = figures.read("part")
    assert whole["figures"] == {"a": 1}
    assert whole["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert whole["machine"]["load_before"] >= 0
    assert whole["machine"]["load"] >= 0
    assert whole["machine"]["versions"].items() > {"pytest": pytest.__version__}.items()


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
    ("found", "aim", "form", "at_least", "is_met"),
    [
        (0.6, 0.6, ".2f", False, True),
        (0.604, 0.6, ".2f", False, True),  # rounded as shown
        (0.61, 0.6, ".2f", False, False),
        (1.99, 2.0, ".2f", True, False),
        (2300, 2000, ".0f", False, False),
    ],
)
def test_an_aim_is_met_or_bold(found: float, aim: float, form: str, *, at_least: bool, is_met: bool) -> None:
    judged = Aim("calls", found, aim, form, "Disk.", at_least=at_least)
    assert judged.is_met is is_met
    assert ("**" in judged.row()[-1]) is not is_met
    assert (judged.row()[1] == "Disk.") is not is_met


def test_a_figure_of_rounds_is_their_median_with_the_lowest_and_the_highest() -> None:
    aim = Aim("oban", [2.1, 1.9, 4.0], 2.0, bound="why", at_least=True)
    assert aim.row() == ["oban", "", "at least 2.00", "2.10 (1.90 to 4.00)"]


def test_every_miss_says_what_bounds_it() -> None:
    found = [*aims.aims()]
    assert [each.what for each in found if not each.is_met and not each.bound] == []
    assert len({each.what for each in found}) == len(found)


def test_what_bounds_a_cold_start_comes_from_its_figures() -> None:
    found = figures.figures_of("coldstart")
    found["shares_of_imports"] = {"small": 0.01, "numpy": 0.5, "c": 0.1, "b": 0.2, "a": 0.19}
    imports, start = aims.of_cold_starts(found)
    assert imports.bound == start.bound
    assert start.bound.endswith(": numpy 50 %, b 20 %, a 19 %, c 10 %")


def test_connections_have_a_row_only_if_they_were_counted() -> None:
    def rows(counts: list[int]) -> list[list[str]]:
        rounds = [{"tasks_per_second": 1.0, **({"connections": each} if each else {})} for each in counts]
        return [
            each.row()
            for each in aims.of_connections({"8": {"Worker": rounds}, "256": {"Worker": rounds[:1]}})
        ]

    what = "connections of a `Worker` with 1 to 256 slots, PostgreSQL"
    assert rows([0, 0]) == []
    assert rows([3, 9]) == [[what, "", "at most 10", "9"]]
    assert rows([11, 9]) == [[what, "", "at most 10", "**11**"]]


def test_overload_is_judged_close_to_the_capacity_too() -> None:
    """At 1.1 times the capacity, shares below the aim and orders that do not recover are bold."""
    found = figures.figures_of("overload")
    for one in found["by_load"]:
        one["mean"] = 0.95 if one["load"] == 1.1 else 0.999
    for one in found["after_burst"]:
        one["recovery_seconds"] = None if one["order"] == "LIFO" else 5.0
    rows = [each.row() for each in aims.of_overload(found) if not each.is_met]
    assert [(row[0].partition(":")[0], row[-1].partition(" ")[0]) for row in rows] == [
        ("LIFO at 1.1 times the capacity", "**0.950**"),
        ("adaptive at 1.1 times the capacity", "**0.950**"),
        ("LIFO", "**inf**"),
    ]


def test_the_text_beside_the_application_takes_its_numbers_from_the_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = figures.figures_of("overload")
    for one in found["application"]:
        one |= {"slot_seconds": 3.25, "machine_load": 7.5}
    changed = {"overload": found}
    monkeypatch.setattr(
        library_pages, "figures_of", lambda name: changed.get(name) or figures.figures_of(name)
    )
    page = " ".join(markdown(library_pages.measurements_page()["overload", "application"]).split())
    assert "per task in a slot, 3.25 to 3.25 s" in page
    assert "load average of the machine was 7.5 to 7.5" in page


def test_contenders_take_turns_and_each_round_starts_with_the_next() -> None:
    ran: list[str] = []

    def run(name: str) -> int:
        ran.append(name)
        return len(ran)

    found = in_turns({name: lambda name=name: run(name) for name in "abc"}, rounds=3)  # type: ignore[misc]
    assert "".join(ran) == "abcbcacab"
    assert found == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_the_sections_of_a_part_are_those_of_its_files() -> None:
    shown = sections_of(PARTS["floor"].files)
    assert "freshq, µs a task" in shown
    assert shown in (DOCS / PARTS["floor"].page).read_text("utf-8")


def test_blocks_become_markdown() -> None:
    rows = [{"name": "a", "rates": [3.0, 1.0, 2.0], "rest": None}]
    blocks: list[Block] = [
        Prose("one\n    two"),
        columns(rows, {"queue": "{name}", "rate": "{rates:.1f}", "rest": "{rest}"}),
        across("policy", {"LIFO": {1: 0.5}, "FIFO": {2: 0.25}}, ".2f", "at {}".format),
        Table(["a", "b"], [["c", "d"]], texts=2),
    ]
    assert markdown(blocks).split("\n\n") == [
        "one two",
        "| queue | rate | rest |\n| --- | ---: | ---: |\n| a | 2.0 (1.0 to 3.0) |  |",
        "| policy | at 1 | at 2 |\n| --- | ---: | ---: |\n| LIFO | 0.50 |  |\n| FIFO |  | 0.25 |",
        "| a | b |\n| --- | --- |\n| c | d |",
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
        return markdown(aims.machines()).partition("Not measured yet: ")[2].partition(".")[0].split(", ")

    assert "cli" not in unmeasured()
    monkeypatch.setattr(aims, "is_measured", lambda name: name != "cli" and figures.is_measured(name))
    assert "cli" in unmeasured()


@pytest.mark.parametrize(("number", "parts", "each"), [(32, 2, [16, 16]), (5, 2, [3, 2]), (1, 1, [1])])
def test_workers_and_tasks_are_divided_without_a_rest(number: int, parts: int, each: list[int]) -> None:
    assert divided(number, parts) == each


def test_the_prototypes_loop_waits_for_all_of_a_batch() -> None:
    """It does nearly all even tasks, and of uneven tasks as many as the longest of a batch allows."""
    shares = []
    for service in (ServiceDistribution.DET, ServiceDistribution.EXP):
        tasks = Source(12.0, 500.0, 5.0, service=service, seed=3).load()
        shares.append(len(ends_in_time(tasks, 4, 1.0)) / (4 * 500.0))
    # A stagger of 4 starts and a pause for each second of work; the mean longest of 4 is 25/12 of a mean.
    assert shares[0] == pytest.approx(1 / (1 + 0.2 / 15 * 4 + 0.5 / 15), abs=0.03)
    assert shares[1] == pytest.approx(12 / 25, abs=0.1)
