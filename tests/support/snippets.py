"""The snippets of the documentation, and a reader who types them in."""

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from samtranslator.yaml_helper import yaml_parse

from tests.support.functions import PROJECT

# Written above a snippet that no test runs: <!-- not run: it needs an account -->
_NOT_RUN: Final = re.compile(r"<!--\s*not run:\s*(\S.*?)\s*-->\s*\Z", re.DOTALL)
_FILE: Final = re.compile(r"# ([\w./-]+\.\w+)\n")
_COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
_EXPORT: Final = re.compile(r"export (\w+)=(.*)")
# Snippets that are data, and what reads them.
_DATA: Final[dict[str, Callable[[str], object]]] = {
    "ini": str,
    "json": json.loads,
    "mermaid": str,
    "sql": str,  # tests/pipeline/test_questions.py runs it
    "toml": tomllib.loads,
    "yaml": yaml_parse,
}
RUN: Final = {"console", "python", "sh"}
LANGUAGES: Final = {"text", *RUN, *_DATA}
COMMAND_SECONDS: Final = 120
_SAME: Final = doctest.ELLIPSIS


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of code on a page.

    Attributes:
        place: Page and line of its first line.
        language: As the fence names it; empty for an indented block.
        not_run: Why no test runs it, if the page says so.
        is_next: Whether it follows the snippet before directly, so that a text is its output.
    """

    place: str
    language: str
    code: str
    not_run: str | None = None
    is_next: bool = False


def pages() -> list[Path]:
    """Return the pages for users: the README and the documentation, without the reasons of decisions."""
    return [
        PROJECT / "README.md",
        *sorted((PROJECT / "docs").glob("*.md")),
        *sorted((PROJECT / "docs/reference").glob("*.md")),
    ]


def snippets(page: Path) -> list[Snippet]:
    """Return the snippets of a page, in order."""
    found, comment, before = [], "", ""
    for token in MarkdownIt("commonmark").parse(page.read_text("utf-8")):
        if token.type in {"fence", "code_block"} and token.map is not None:
            reason = _NOT_RUN.search(comment)
            place = f"{page.name}:{token.map[0] + 1}"
            language = token.info.strip()
            is_next = before == "fence"
            found.append(Snippet(place, language, token.content, reason and reason[1], is_next))
        comment, before = token.content if token.type == "html_block" else "", token.type
    return found


class Reader:
    """Follows pages in a folder: saves files, runs programs and commands, and compares what they print.

    A `python` snippet whose first line is a comment with a file name is saved under that name; any other
    runs, with the names that earlier ones of the page defined. A `text` snippet directly below shows its
    output. In a `console` snippet, lines that start with `$ ` are commands, and the other lines their output.
    `...` in an output stands for any text.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        stand_ins: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            folder: The current folder; nothing in it is needed afterwards.
            environment: Variables of the commands.
            stand_ins: Replacements for things that each reader has of their own, such as a database.
        """
        self.folder = folder
        self.printed: dict[str, str] = {}
        self._stand_ins = dict(stand_ins or {})
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._last = ""
        self._saved: list[str] = []
        # The text of programs and commands, in which a saved file is named by what runs it.
        self._mentioned = ""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        plain = {"COLUMNS": "100", "HOME": str(folder), "LANG": "C.UTF-8", "PATH": programs, "TERM": "dumb"}
        # Like the entry point, in case freshq was installed before it had one.
        plain["PYTEST_ADDOPTS"] = "-p freshq.testing.plugin"
        self.environment = plain | dict(environment or {})

    def follow(self, read: Iterable[Snippet]) -> None:
        """Do what snippets say, except those that name a reason why no test does."""
        for snippet in read:
            if snippet.not_run is None:
                self._do(snippet)
        idle = [name for name in self._saved if Path(name).stem not in self._mentioned]
        assert not idle, f"nothing runs the files {', '.join(idle)}"

    def _do(self, snippet: Snippet) -> None:
        code = snippet.code
        for shown, here in self._stand_ins.items():
            code = code.replace(shown, here)
        name = _FILE.match(code)
        if snippet.language == "console":
            self._type(code, snippet.place)
        elif snippet.language == "sh":
            self._shell(f"set -e\n{code}", snippet.place)
        elif snippet.language == "python" and name:
            self._save(name[1], code)
        elif snippet.language == "python":
            self._run(code, snippet.place)
        elif snippet.language == "text":
            if snippet.is_next:  # else it is a picture in letters
                same(self._last, code, snippet.place)
        else:
            _DATA[snippet.language](code)

    def _save(self, name: str, code: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, "utf-8")
        self._saved.append(name)
        self._mentioned += f"\n{code.partition(chr(10))[2]}"

    def _run(self, code: str, place: str) -> None:
        self._mentioned += code
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(code, place, "exec"), self._names)
        self._last = printed.getvalue()

    def _type(self, code: str, place: str) -> None:
        commands = list(_COMMAND.finditer(code))
        assert code.startswith("$ "), f"{place}: a console snippet begins with a command, after `$ `"
        for command, output in (found.groups() for found in commands):
            export = _EXPORT.fullmatch(command)
            if export:
                self.environment[export[1]] = export[2].strip("'\"")
            else:
                self.printed[command] = self._shell(command, place)
            if output.strip():
                same(self.printed[command], output, place)

    def _shell(self, command: str, place: str) -> str:
        self._mentioned += command if "pytest" not in command else " ".join((command, *self._saved))
        bash = shutil.which("bash")
        assert bash is not None
        done = subprocess.run(
            [bash, "-c", command],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{place}: `{command}` ended with {done.returncode}:\n{done.stdout}"
        return done.stdout


def same(printed: str, shown: str, place: str) -> None:
    """Fail unless an output is as a page shows it; `...` stands for any text.

    Raises:
        AssertionError: If it is not, with both.
    """
    got, want = (
        "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines()) for text in (printed, shown)
    )
    assert doctest.OutputChecker().check_output(want, got, _SAME), f"{place}: shown\n{want}printed\n{got}"
