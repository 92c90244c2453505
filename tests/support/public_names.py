"""The public names of freshq, and the classes that their signatures name."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

ROOMS = ("errors", "feeds", "matching", "model", "policy", "queue", "stores", "telemetry", "worker")


@cache
def exported() -> dict[str, Any]:
    """Return the object of each public name of `freshq` and its rooms, by full name."""
    modules = [import_module(name) for name in ("freshq", *(f"freshq.{room}" for room in ROOMS))]
    return {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in dir(module)}


@dataclass(frozen=True)
class Signature:
    """The annotations of a public method or attribute of a class of freshq."""

    owner: type
    name: str
    annotations: tuple[str, ...]

    def classes(self) -> set[type]:
        """Return the classes of freshq that the annotations name, also by an alias."""
        found = [_classes(self.owner.__module__, text) for text in self.annotations]
        return set[type]().union(*found)


def signatures(public: type) -> Iterator[Signature]:
    """Yield the signatures of the public methods and attributes that a class has or inherits."""
    seen = set[str]()
    for owner in public.__mro__:
        if not owner.__module__.startswith("freshq"):
            continue
        fields = vars(owner).get("__annotations__", {})
        yield from (Signature(owner, name, (str(text),)) for name, text in fields.items() if name[0] != "_")
        for name, member in list(vars(owner).items()):
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and name not in seen and (name[0] != "_" or name == "__init__"):
                yield Signature(
                    owner, name, tuple(map(str, inspect.unwrap(function).__annotations__.values()))
                )
                yield from (
                    Signature(owner, *each) for each in _set_attributes(function) if name == "__init__"
                )
            seen.add(name)


def _set_attributes(function: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the public attributes that a function sets and annotates, each with its annotation."""
    code = "" if function.__code__.co_filename == "<string>" else textwrap.dedent(inspect.getsource(function))
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation) if name[0] != "_":
                yield name, (ast.unparse(annotation),)


def _classes(module: str, annotation: str) -> set[type]:
    found = set[type]()
    for word in set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", annotation)):
        origin, value = _meaning(module, word)
        if value is not None:
            found |= _classes(origin, value)
        elif origin.startswith("freshq") and inspect.isclass(
            it := getattr(import_module(origin), word, None)
        ):
            found.add(it)
    return found


@cache
def _meaning(module: str, word: str) -> tuple[str, str | None]:
    """Return the module that defines a word, and for an alias its value; "" if it is not freshq's."""
    for node in _definitions(module):
        match node:
            case ast.ImportFrom(module=str(source), names=imported) if word in {
                name.name for name in imported
            }:
                return _meaning(source, word) if source.startswith("freshq") else ("", None)
            case ast.ClassDef(name=name) if name == word:
                return module, None
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias"), value=ast.expr() as value
            ):
                if name == word:
                    return module, ast.unparse(value)
    return "", None


@cache
def _definitions(module: str) -> list[ast.AST]:
    """Return the lines that may define a word in a module; cached, because reading it takes seconds."""
    nodes = ast.walk(ast.parse(inspect.getsource(import_module(module))))
    return [node for node in nodes if isinstance(node, ast.ImportFrom | ast.ClassDef | ast.AnnAssign)]
