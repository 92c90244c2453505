"""How a room exports its public names, each loaded when it is first used."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def exports(package: str, extra: str = "") -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose `__init__.pyi` lists its public names.

    The stub is also what type checkers read, so a name is listed once. A program that imports the package
    pays only for the names that it uses.

    Args:
        package: The package.
        extra: The extra of freshq that its modules need, such as "pipeline"; "" for none.
    """

    @cache
    def modules() -> dict[str, str]:
        """Return the module of each public name; a line of the stub is `from module import name as name`."""
        module: Any = sys.modules[package]
        stub = module.__loader__.get_data(f"{module.__path__[0]}/__init__.pyi").decode()
        lines = (line.split() for line in stub.splitlines() if line.startswith("from "))
        return {words[3]: words[1] for words in lines}

    def names() -> list[str]:
        return sorted(modules())

    def load(name: str) -> object:
        if name == "__all__":
            return names()
        if name.startswith("__") or name not in modules():
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(_imported(modules()[name], extra), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, names


def _imported(module: str, extra: str) -> object:
    if not extra:
        return import_module(module)
    from freshq.errors import needs  # noqa: PLC0415 - most packages need no extra

    with needs(extra):
        return import_module(module)
