"""The instructions in the README and the guides: run if possible, else compared with the project."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from freshq.aws.producer import parse_load_request
from tests.support.functions import EVENTS, PROJECT
from tests.template.test_template import source

README = (PROJECT / "README.md").read_text("utf-8")
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text("utf-8")
MAKEFILE = (PROJECT / "Makefile").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_library_example_runs(tmp_path: Path) -> None:
    (example,) = blocks("python")
    done = subprocess.run(  # noqa: S603 - this interpreter, this README
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'price': 42, 'symbol': 'ABC'" in done.stdout
    assert "success=3, failure=1" in done.stdout


def test_every_event_file_is_shown_with_its_function() -> None:
    shown = re.findall(r"sam local invoke (\w+) +-e events/([\w-]+)\.json", README)
    assert sorted(event for _function, event in shown) == sorted(file.stem for file in EVENTS.glob("*.json"))
    for function, event in shown:
        folder = source()["Resources"][function]["Properties"]["CodeUri"]
        assert folder == f"functions/{event.split('-')[0]}/"


def test_the_console_events_are_accepted() -> None:
    events = re.findall(r"^\| `(\{.*?\})` \|", README, re.MULTILINE)
    assert len(events) == 3
    for event in events:
        parse_load_request(json.loads(event))


def test_the_make_targets_exist_and_are_listed() -> None:
    make = shutil.which("make")
    assert make is not None
    help_text = subprocess.run(  # noqa: S603 - make, of this machine
        [make], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout
    for target in set(re.findall(r"(?:^ *|`)make ([a-z-]+)", README + CONTRIBUTING, re.MULTILINE)):
        assert f"make {target} " in help_text, target


def test_every_room_has_fast_tests() -> None:
    fast = dict(re.findall(r"^FAST_(\w+) := (.*)$", MAKEFILE, re.MULTILINE))
    listed = CONTRIBUTING.split("| ROOM |")[1].split("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", listed, re.MULTILINE) == list(fast)
    for room, arguments in fast.items():
        for path in arguments.split(" -k ")[0].split():
            assert (PROJECT / path).exists(), f"{room}: {path}"


def test_the_parameters_exist() -> None:
    parameters = source()["Parameters"]
    for name in re.findall(r"(\w+)=\S+", " ".join(re.findall(r"--parameter-overrides (.*)", README))):
        assert name in parameters


def test_the_links_work() -> None:
    documents = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    for document in documents:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_runbook_has_a_page_for_every_alarm() -> None:
    runbook = (PROJECT / "docs" / "operations.md").read_text("utf-8")
    alarms = [
        name
        for name, resource in source()["Resources"].items()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    ]
    assert len(alarms) >= 9
    for name in alarms:
        assert f"| {name} |" in runbook, name


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["stats", "--help"]])
def test_the_command_is_installed(arguments: list[str]) -> None:
    command = Path(sys.executable).parent / "freshq"
    done = subprocess.run(  # noqa: S603 - this project's command
        [command, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
