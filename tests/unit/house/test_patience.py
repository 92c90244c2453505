"""Tests wait for answers as long as a busy machine needs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.functions import PROJECT

# By default httpx gives up after five seconds; a transport is in the test's own process.
PATIENT: Final = {"timeout", "transport"}
REQUESTS: Final = {
    "AsyncClient",
    "Client",
    "delete",
    "get",
    "head",
    "patch",
    "post",
    "put",
    "request",
    "stream",
}


def impatient(text: str) -> Iterator[int]:
    """Yield the lines in which httpx would wait for its default time."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="httpx"), attr=attr)) if attr in REQUESTS:
                if not PATIENT.intersection(keyword.arg or "" for keyword in node.keywords):
                    yield node.lineno


def test_no_request_has_the_timeout_of_its_library() -> None:
    assert [*impatient("httpx.get(url)\nhttpx.get(url, timeout=60)\nhttpx.Client()\n")] == [1, 3]
    found = {
        path.relative_to(PROJECT).as_posix(): lines
        for path in sorted(Path(PROJECT, "tests").rglob("*.py"))
        if (lines := [*impatient(path.read_text("utf-8"))])
    }
    assert found == {}
