"""The counts and the page of `make mutation`."""

import inspect
import json
import pkgutil
import tomllib
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from local import mutation
from local.mutation import Mutant, Reasons, Run, killed_ratios, report

CHANGE = "--- a\n+++ a\n@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2"


def mutant(status: str, name: str = "freshq.policy.pressure.x_f__mutmut_1") -> Mutant:
    return Mutant("policy", name, status, CHANGE)


def test_what_ends_a_test_run_is_killed() -> None:
    mutants = [mutant(status) for status in ("killed", "timeout", "survived", "no tests")]
    assert killed_ratios(mutants) == {"policy": 0.5}


def run_of(*mutants: Mutant) -> Run:
    return Run(list(mutants), {"policy": 9}, seed=14)


def test_the_page_lists_survivors_with_their_reasons() -> None:
    known = Reasons(
        """
        [[survivor]]
        function = "freshq.policy.pressure.f"
        removed = "return 1"
        added = "return 2"
        reason = "The same."
        """
    )
    method = mutant("survived", "freshq.policy.pressure.xǁFlowǁ__init____mutmut_3")
    page = report(run_of(mutant("killed"), mutant("survived"), method), known)
    assert "| policy | 9 | 3 | 1 | 0 | 2 | 0 | 33.3 |" in page
    assert "a random sample, seed 14." in page
    assert "| `policy.pressure.f` | `return 1` → `return 2` | The same. |" in page
    assert "| `policy.pressure.Flow.__init__` | `return 1` → `return 2` | No test notices it yet. |" in page


def test_a_reason_may_hold_for_a_change_wherever_it_is_made() -> None:
    known = Reasons(
        """
        [[change]]
        removed = "1"
        added = ["3", "2"]
        reason = "Any number will do."
        """
    )
    other = Mutant("policy", "freshq.policy.pressure.x_f__mutmut_1", "survived", CHANGE.replace("2", "4"))
    assert known.of(mutant("survived")) == "Any number will do."
    assert known.of(other) is None


def test_a_room_with_too_many_survivors_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_of(*[mutant("killed"), mutant("survived")] * 10)
    monkeypatch.setattr(mutation, "prepare", lambda _folder, _rooms: None)
    monkeypatch.setattr(mutation, "run", lambda _folder, _sample, _processes: done)
    monkeypatch.setattr("sys.argv", ["mutation", "policy"])
    with pytest.raises(SystemExit, match="too few mutants were killed in policy"):
        mutation.main()
    assert "policy: 50.0% killed" in capsys.readouterr().out


def test_each_room_has_its_turn_within_three_days() -> None:
    days = [date(2026, 12, 31) + timedelta(days=number) for number in range(3)]
    turns = [mutation.rooms_of(day) for day in days]
    assert sorted(room for rooms in turns for room in rooms) == sorted(mutation.TESTS)


def test_rooms_are_not_chosen_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutation", "--today", "policy"])
    with pytest.raises(SystemExit):
        mutation.main()
    assert "--today chooses the rooms: name none" in capsys.readouterr().err


@pytest.mark.parametrize(("tried", "least"), [(20, 12), (30, 19), (50, 35), (1000, 817)])
def test_a_sample_fails_only_beyond_chance(tried: int, least: int) -> None:
    assert mutation.least_killed(tried, 0.85) == least


def test_functions_that_no_test_calls_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {"uncalled": ["freshq.model.codec.x_holder", "freshq.queue.upkeep.xǁUpkeepǁtake_exhausted"]}
    (tmp_path / "results.json").write_text(json.dumps(found))
    monkeypatch.setattr("subprocess.run", lambda *_arguments, **_named: SimpleNamespace(returncode=0))
    message = "no test calls freshq.model.codec.holder, freshq.queue.upkeep.Upkeep.take_exhausted; add one"
    with pytest.raises(SystemExit, match=message):
        mutation.run(tmp_path, 0, 1)


def test_every_reason_is_a_sentence() -> None:
    known = Reasons(mutation.REASONS.read_text("utf-8")).all()
    assert known
    assert all(reason.endswith(".") for reason in known)


def test_each_reason_is_of_a_line_that_exists() -> None:
    for survivor in tomllib.loads(mutation.REASONS.read_text())["survivor"]:
        code = inspect.getsource(pkgutil.resolve_name(survivor["function"]))
        assert " ".join(survivor["removed"].split()) in " ".join(code.split()), survivor["function"]
