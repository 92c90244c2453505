"""The public names of a package, as type checkers see them."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType


def declared(package: ModuleType) -> dict[str, str]:
    """Return the module of each public name, from the stub of a package, or its imports for type checkers."""
    source = Path(str(package.__file__))
    stub = source.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else source).read_text(encoding="utf-8"))
    block = tree if stub.exists() else next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
