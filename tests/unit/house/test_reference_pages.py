"""The reference of the documentation: it has every public name, with an example that `tests/docs` runs."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import freshq
import freshq.testing
import freshq_pipeline
from tests.support.public_names import declared

PROJECT = Path(__file__).parents[3]
DOCS = PROJECT / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))


def test_every_public_name_is_on_a_page() -> None:
    named = set(
        re.findall(r"^::: (\S+)$", "\n".join(page.read_text("utf-8") for page in PAGES), re.MULTILINE)
    )
    missing = [
        name
        for name, module in (declared(freshq) | declared(freshq_pipeline)).items()
        if module not in named and f"{module}.{name}" not in named
    ]
    assert missing == []


def test_every_public_class_has_an_example() -> None:
    used = set[str]()
    for page in PAGES:
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            tree = ast.walk(ast.parse(code))
            found = [node for node in tree if isinstance(node, ast.ImportFrom)]
            used |= {
                name.name
                for node in found
                if node.module in {"freshq", "freshq.testing", "freshq_pipeline"}
                for name in node.names
            }
    errors = (DOCS / "reference" / "errors.md").read_text("utf-8")
    public = [*declared(freshq), *freshq.testing.__all__, *freshq_pipeline.__all__]
    missing = [name for name in public if name not in used and f"`{name}`" not in errors]
    assert missing == []
    assert len(used) > 45


def test_the_install_section_has_every_extra() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    shown = re.findall(r"^\| `(\w+)` \|", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(extras)
