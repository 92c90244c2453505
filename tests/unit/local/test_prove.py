"""`make prove`: its configuration and verdicts, and the map from the specifications to the code."""

import ast
import re
from pathlib import Path

import pytest
from local.prove import SPECS, Check, NotProved, answer_of, checks, java, main, prove, transitions_module

from freshq.model.task import TRANSITIONS
from freshq.stores.dynamodb.line_records import RULES, LineRules

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "layers" / "freshq" / "freshq"
PAGE = REPOSITORY / "docs" / "contributing" / "proof.md"
MODULES = sorted(path.stem for path in SPECS.glob("*.tla") if path.stem != "Transitions")
HOLDS = Check("Lease", "all", {"Broken": '"nothing"'}, ["EndsOnce"], [])
REFUTED = Check("Lease", "no fence", {}, ["EndsOnce"], [], "EndsOnce", 3)
HELD_OUTPUT = """
5,728 distinct states found
30,279 states generated, 5,728 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 14.
"""
REFUTED_OUTPUT = """Error: Invariant EndsOnce is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
State 2: <Claim>
State 3: <Settle>
40 states generated, 30 distinct states found, 5 states left on queue.
The depth of the complete state graph search is 3.
"""


def text_of(module: str) -> str:
    return (SPECS / f"{module}.tla").read_text("utf-8")


def actions_of(module: str) -> list[str]:
    """Return the actions in the next-state relation of a specification."""
    text = text_of(module).partition("\nSymmetry ==")[0]
    relation = text.split("\nNext ==\n", 1)[1].split("\n\n", 1)[0]
    defined = set(re.findall(r"^(\w+)(?:\([^)]*\))? ==", text, re.MULTILINE))
    names = re.findall(r"(?<!\\in )(?<!DOMAIN )\b\w+", relation)
    return [name for name in dict.fromkeys(names) if name in defined]


def mapped(module: str) -> dict[str, str]:
    """Return the page's text about each action of a specification."""
    section = PAGE.read_text("utf-8").split(f"\n## {module}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", section, re.MULTILINE)
    return {action: function for action, function in rows if action != "action"}


def names_in(tree: ast.AST, prefix: str = "") -> set[str]:
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= names_in(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
    return found


def test_the_transitions_of_the_specifications_are_those_of_the_code() -> None:
    assert text_of("Transitions") == transitions_module()


def test_each_transition_of_the_specifications_has_a_verb_of_the_code() -> None:
    verbs = {verb for module in MODULES for verb in re.findall(r'Follow\("([^"]+)"', text_of(module))}

    assert verbs
    assert verbs <= set(TRANSITIONS)


@pytest.mark.parametrize("module", MODULES)
def test_the_page_maps_each_action_to_a_function(module: str) -> None:
    rows = mapped(module)

    assert sorted(rows) == sorted(actions_of(module))
    for action, function in rows.items():
        if function == "the environment":
            continue
        found = re.fullmatch(r"`([\w/]+\.py)` `([\w.]+)`", function)
        assert found, (action, function)
        assert found[2] in names_in(ast.parse((PACKAGE / found[1]).read_text("utf-8"))), (action, function)


@pytest.mark.parametrize("module", MODULES)
def test_each_specification_holds_and_has_variants_that_are_refuted(module: str) -> None:
    own = [
        each
        for each in checks((SPECS / "checks.toml").read_text("utf-8"), short=False)
        if each.module == module
    ]
    broken = {each.name for each in own if each.violates}

    assert any(not each.violates for each in own)
    assert broken == set(re.findall(r'Broken (?:=|#) "([^"]+)"', text_of(module))) - {"nothing"}
    assert all(each.length > 1 for each in own if each.violates)


def test_the_times_of_lines_are_those_of_the_specification() -> None:
    rules = LineRules(trust_seconds=1, send_seconds=1, landing_seconds=1, index_lag_seconds=1)
    ages = range(5)

    assert [age for age in ages if rules.may_put(age)] == [0]
    assert [age for age in ages if rules.put_was_late(age)] == [3, 4]
    assert [age for age in ages if rules.may_delete(age)] == [0]
    assert [age for age in ages if rules.deletion_was_late(age)] == [3, 4]
    assert rules.recheck_after_seconds == 5
    assert RULES.recheck_after_seconds <= 10


def test_the_guarantees_name_specifications_and_tests_that_exist() -> None:
    text = PAGE.read_text("utf-8").partition("\n## Guarantees\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "`" in line]

    assert len(rows) >= 8
    for row in rows:
        assert set(re.findall(r"`(\w+)`", row[1])) <= set(MODULES), row
        tests = re.findall(r"`(tests/[\w/.]+)`", row[2])
        assert tests
        assert [test for test in tests if not (REPOSITORY / test).exists()] == []


def test_a_short_run_takes_smaller_constants_and_every_variant() -> None:
    text = """
[Some]
constants = { Tokens = "{1}" }
invariants = ["Holds"]
[[Some.holds]]
name = "long only"
[[Some.holds]]
name = "both"
constants = { Tokens = "{1, 2, 3}" }
short = { Tokens = "{1, 2}" }
[[Some.refuted]]
broken = "part"
violates = "Ends"
length = 4
in_the_end = true
"""
    assert [each.name for each in checks(text, short=False)] == ["long only", "both", "part"]
    both, part = checks(text, short=True)
    assert both.config() == (
        'SPECIFICATION Spec\nCONSTANT Broken = "nothing"\nCONSTANT Tokens = {1, 2}\nINVARIANT Holds\n'
    )
    assert (part.properties, part.invariants, part.constants["Broken"]) == (["Ends"], [], '"part"')


def test_what_holds_is_counted() -> None:
    answer = answer_of(HOLDS, HELD_OUTPUT, 1.5)
    assert (answer.states, answer.depth, answer.seconds) == (5728, 14, 1.5)


def test_a_refuted_variant_has_the_expected_counterexample() -> None:
    answer = answer_of(REFUTED, REFUTED_OUTPUT, 1.0)
    assert (answer.states, answer.depth) == (30, 3)


@pytest.mark.parametrize(
    ("check", "output", "error"),
    [
        (HOLDS, REFUTED_OUTPUT, "EndsOnce is refuted by 3 states; expected no counterexample"),
        (REFUTED, HELD_OUTPUT, "EndsOnce holds, but must be refuted"),
        (
            REFUTED,
            REFUTED_OUTPUT.replace("State 3", "State 4"),
            "refuted by 4 states; expected EndsOnce by 3",
        ),
        (HOLDS, "Error: TLC threw an unexpected exception.", "TLC did not finish"),
        (HOLDS, HELD_OUTPUT.replace("0 states left", "7 states left"), "TLC did not finish"),
    ],
)
def test_any_other_answer_is_an_error(check: Check, output: str, error: str) -> None:
    with pytest.raises(NotProved, match=error):
        answer_of(check, output, 1.0)


def test_the_java_of_the_packages_serves_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert Path(java()).name == "java"


def test_a_failed_check_fails_the_run_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(check: Check) -> object:
        return answer_of(check, HELD_OUTPUT, 1.0)

    monkeypatch.setattr("local.prove.run", answer)
    assert prove([HOLDS, REFUTED]) == 1
    shown = capsys.readouterr().out
    assert "5,728    14    1.0" in shown
    assert "FAILED\nLease, no fence: EndsOnce holds, but must be refuted" in shown
    assert "\n1 passed, 1 failed\n" in shown


def test_an_unknown_specification_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["Nothing"])
    assert "no such specification: Nothing" in capsys.readouterr().err
