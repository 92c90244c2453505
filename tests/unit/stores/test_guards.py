"""If a guard of the protocol is removed from the code, some order of calls finds it."""

import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.support.planted_bugs import Planted

GUARDS: Final = {
    name: Planted(**planted)
    for name, planted in tomllib.loads(Path(__file__).with_name("guards.toml").read_text("utf-8")).items()
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take the store in memory only, which is the quickest, unless all tests run."""
    if "name" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("all")
    names = [name for name, planted in GUARDS.items() if every or planted.world == "memory"]
    metafunc.parametrize("name", names)


def test_a_lost_guard_is_found(name: str) -> None:
    planted = GUARDS[name]
    assert planted.found([planted.seed, *range(5_000)]) is not None


def test_each_guard_is_in_the_code() -> None:
    removed = 0
    for planted in GUARDS.values():
        with planted.in_the_code():  # fails where the text of the guard is gone
            removed += 1
    assert removed == len(GUARDS)
