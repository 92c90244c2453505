"""The reference of the documentation: its examples run, and it has every public name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import freshq

if TYPE_CHECKING:
    import os

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_prints_what_the_page_says(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    exec(compile(code, page.name, "exec"), {})  # noqa: S102 - the page's own program
    assert capsys.readouterr().out == output


def test_the_first_steps_work(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "first.py", "exec"), {})  # noqa: S102 - the page's own program
    assert capsys.readouterr().out == "{'price': 42, 'symbol': 'ABC'}\n"


def test_every_public_name_is_on_a_page() -> None:
    named = set(
        re.findall(r"^::: (\S+)$", "\n".join(page.read_text("utf-8") for page in PAGES), re.MULTILINE)
    )
    missing = [
        name
        for name, module in freshq._MODULES.items()
        if module not in named and f"{module}.{name}" not in named
    ]
    assert missing == []
