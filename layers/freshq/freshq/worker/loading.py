"""Objects of the application, named as ``module:name``."""

from __future__ import annotations

import importlib
import traceback
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import quoted

if TYPE_CHECKING:
    from types import ModuleType

# Where this package and Python's own modules are: an error names the line of the application that led there.
NOT_OF_APPLICATIONS: Final = (Path(__file__).parents[1], Path(traceback.__file__).parent)


def load_object(argument: str, name: str, advice: str, *, what: str, example: str) -> Any:  # noqa: ANN401
    """Import what a name such as ``orders.runner:run`` refers to.

    Args:
        argument: What the name was given as, for errors.
        name: The module, and the name in it.
        advice: What to do if there is no such module, for the error.
        what: What it should be, such as "function", for the error.
        example: A name of the right form, for the error.

    Raises:
        ValueError: One line that names the wrong part and what to do.
    """
    module_name, separator, object_name = name.partition(":")
    if not separator or not module_name or not object_name:
        msg = f"{argument}: {quoted(name)} is not of the form 'module:{what}', such as {example!r}"
        raise ValueError(msg)
    if module_name.endswith(".py") or "/" in module_name:
        own = f"{Path(module_name).stem}:{object_name}"
        msg = f"{argument}: {quoted(module_name)} is a file, not a module; write {own!r}, from its folder"
        raise ValueError(msg)
    module = _imported(argument, module_name, advice)
    if not hasattr(module, object_name):
        near = get_close_matches(object_name, vars(module), 1)
        hint = f"; is it {near[0]!r}?" if near else ""
        msg = f"{argument}: module {quoted(module_name)} has no {what} {object_name!r}{hint}"
        raise ValueError(msg)
    return getattr(module, object_name)


def _imported(argument: str, name: str, advice: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        msg = f"{argument}: module {quoted(name)} cannot be imported ({error})"
        raise ValueError(f"{msg}; {advice}" if is_absent and advice else msg) from error
    except Exception as error:
        msg = f"{argument}: module {quoted(name)} failed when imported, {_origin(error)}"
        raise ValueError(msg) from error


def _origin(error: Exception) -> str:
    """Return where in the application and how a module failed, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if _is_of_application(frame.filename)), frames[-1])
    file, line = last.filename, last.lineno
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno
    return f"{file}, line {line}: {type(error).__name__}: {error}"


def _is_of_application(file: str) -> bool:
    is_frozen = file.startswith("<frozen ")
    return not is_frozen and not any(folder in Path(file).parents for folder in NOT_OF_APPLICATIONS)
