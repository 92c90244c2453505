"""Every snippet of the documentation runs, or says why not; the others still match the project."""

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from freshq.cli.main import app as freshq
from freshq_pipeline.cli import app as freshq_pipeline
from tests.support.snippets import LANGUAGES, RUN, Reader, Snippet, pages, snippets

# Pages that need more than a folder have a test of their own.
FOLLOWED_ELSEWHERE: Final = {"tutorial.md": "test_tutorial"}
PAGES: Final = {page.relative_to(page.parents[1]).as_posix(): page for page in pages()}
ALL: Final = [snippet for page in PAGES.values() for snippet in snippets(page)]
COMMANDS: Final = {"freshq": freshq, "freshq-pipeline": freshq_pipeline}
# Text that starts the next command of a line.
BETWEEN: Final = {";", "&&", "||", "|", "(", ")", "&", ">"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty current folder to import from; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "name", [name for name, page in PAGES.items() if page.name not in FOLLOWED_ELSEWHERE]
)
def test_a_page_does_what_it_says(name: str, folder: Path) -> None:
    Reader(folder).follow(snippets(PAGES[name]))


def test_pages_followed_elsewhere_have_their_test() -> None:
    for page, module in FOLLOWED_ELSEWHERE.items():
        text = importlib.import_module(f"tests.docs.{module}").__doc__ or ""
        assert page.removesuffix(".md") in text.lower()


def test_every_snippet_names_its_language() -> None:
    assert [snippet.place for snippet in ALL if snippet.language not in LANGUAGES] == []


def test_there_is_something_to_run() -> None:
    """A reader who does nothing would not fail."""
    run = [snippet for snippet in ALL if snippet.language in RUN and snippet.not_run is None]
    assert len(run) > 40
    assert len({snippet.place.split(":")[0] for snippet in run}) > 10


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "shown\n2\nprinted\n1"),
        ("```python\n1\n```\n\n```text\n1\n```", "shown\n1\nprinted\n"),
        ("```console\n$ echo 1\n2\n```", "shown\n2\nprinted\n1"),
        ("```console\n$ false\n```", "`false` ended with 1"),
        ("```sh\nfalse\ntrue\n```", "ended with 1"),
        ("```console\necho 1\n```", "begins with a command"),
        ("```python\n# a.py\nprint(1)\n```", "nothing runs the files a.py"),
        ("```text\na picture\n```\n\n```json\n{]\n```", "Expecting property name"),
    ],
)
def test_a_reader_sees_what_is_wrong(page: str, said: str, folder: Path) -> None:
    (folder / "page.md").write_text(page)
    with pytest.raises((AssertionError, ValueError), match=re.escape(said)):
        Reader(folder).follow(snippets(folder / "page.md"))


def test_a_reason_is_a_reason(folder: Path) -> None:
    marked = "<!-- not run: no account -->\n```sh\nfalse\n```\n\n<!-- not run: -->\n```sh\ntrue\n```"
    (folder / "page.md").write_text(marked)
    assert [snippet.not_run for snippet in snippets(folder / "page.md")] == ["no account", None]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the project that a page shows, with its place, whether it is run or not."""
    for snippet in ALL:
        if snippet.language in {"sh", "console"}:
            for line in snippet.code.replace("\\\n", " ").splitlines():
                words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
                words.whitespace_split = True
                yield from ((snippet.place, one) for one in _split(_words(words)))


def _words(words: shlex.shlex) -> list[str]:
    try:
        return list(words)
    except ValueError:  # a line of an output
        return []


def _split(words: list[str]) -> Iterator[list[str]]:
    places = [place for place, word in enumerate(words) if word in COMMANDS]
    for begin, end in pairwise([*places, len(words)]):
        if begin == 0 or words[begin - 1] in BETWEEN or words[begin - 1].endswith("$"):
            stop = next((at for at in range(begin, end) if words[at] in BETWEEN), end)
            yield words[begin:stop]


def problem(words: list[str]) -> str | None:
    """Return the part of a line that the project's commands lack, or None."""
    command: Any = typer.main.get_command(COMMANDS[words[0]])
    rest = words[1:]
    while hasattr(command, "commands") and rest:
        name = rest.pop(0)
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
        command = getattr(command, "loaded", command)  # loaded when it is first used
    known = {"--help", *(option for one in command.params for option in (*one.opts, *one.secondary_opts))}
    options = [word.split("=")[0] for word in rest if word.startswith("--")]
    unknown = [option for option in options if option not in known]
    return f"no option {unknown[0]}" if unknown else None


def test_the_commands_on_the_pages_exist() -> None:
    found = list(commands())
    assert len(found) > 60
    wrong = [(place, " ".join(words), said) for place, words in found if (said := problem(words))]
    assert wrong == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert problem(["freshq", "table", "drop"]) == "no command drop"
    assert problem(["freshq", "put", "1", "--speed=9"]) == "no option --speed"
    assert problem(["freshq", "put", "1", "--task-id", "a"]) is None


def imports(snippet: Snippet) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(snippet.code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "freshq":
            yield from ((node.module or "", name.name) for name in node.names)


@pytest.mark.parametrize(
    "snippet",
    [one for one in ALL if one.language == "python" and one.not_run],
    ids=lambda snippet: snippet.place,
)
def test_programs_that_are_not_run_compile_and_import_what_exists(snippet: Snippet) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    assert compile(snippet.code, snippet.place, "exec", flags) is not None
    for module, name in imports(snippet):
        assert hasattr(importlib.import_module(module), name), f"{snippet.place}: {module}.{name}"
