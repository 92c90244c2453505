"""freshq: a task queue for work that loses value with age.

`__init__.pyi` lists the public names, for type checkers and for this module. A name is loaded when it is
first used, so a program pays only for the parts that it needs.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module


@cache
def _modules() -> dict[str, str]:
    """Return the module of each public name."""
    import pkgutil  # noqa: PLC0415 - every run of pytest imports freshq, and most ask for no name

    stub = pkgutil.get_data(__name__, "__init__.pyi") or b""
    imports = (node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in _modules():
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_modules()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
