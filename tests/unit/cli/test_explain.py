"""`freshq explain` says what each error and shed reason means and what to do; a terminal shows its code."""

import io
import re
import sys

import pytest
from typer.testing import CliRunner

from freshq import errors
from freshq.cli.commands.doctor import explanations
from freshq.cli.errors import code_of
from freshq.cli.main import app
from freshq.policy.shedding import ShedReason
from freshq.stores.sql.failures import RightsMissing
from tests.support.functions import PROJECT


def explained(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *arguments])
    return done.exit_code, done.stdout or done.stderr


@pytest.mark.parametrize("code", [*dir(errors), *ShedReason])
def test_every_error_and_reason_has_its_remedy(code: str) -> None:
    status, text = explained(code.upper())
    meaning, *remedy, place = text.strip().split("\n\n")
    assert (status, meaning[-1]) == (0, ".")
    assert code == "FreshqError" or remedy[0].startswith("What to do: ")
    page, _, anchor = place.removeprefix("See ").partition("#")
    shown = (PROJECT / page).read_text("utf-8")
    heading = anchor.replace("-", " ").replace("shed and", "shed, and")
    assert "::: freshq.errors" in shown or f"## {heading}" in shown.lower()


def test_without_a_code_it_lists_them() -> None:
    status, text = explained()
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()] == [*explanations()]
    assert re.search(r"^TableMissing +The table, or one of its indexes, does not exist$", text, re.MULTILINE)
    assert re.search(
        r"^admission +A task was shed, because admission control rejected it$", text, re.MULTILINE
    )


def test_an_unknown_code() -> None:
    status, text = explained("Overlode")
    assert (status, text.startswith("freshq: code: there is no 'Overlode'; use one of DamagedTask, ")) == (
        2,
        True,
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("queue", ["memory://", "here"])
def test_an_error_on_a_terminal_names_its_code(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong argument has no explanation: its message says all."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit):
        app(["get", "nobody", "--queue", queue])
    lines = terminal.getvalue().splitlines()
    assert lines[1:] == (["freshq: `freshq explain NotFound` says what that means"] if "://" in queue else [])


def test_an_error_of_a_store_is_known_by_its_public_base() -> None:
    assert code_of(RightsMissing("no right")) == "StoreError"
