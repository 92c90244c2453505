"""Find files of a function that hide modules of Python's standard library.

A function imports its own files first. The build runs this file alone, with any Python, and every function
imports it before anything that such a file could hide, so it imports only what Python has loaded itself.
"""
# Its files may hide pathlib:
# ruff: noqa: PTH112, PTH113, PTH118, PTH119, PTH122, PTH208

import os
import sys


def hiding(folder: str) -> list[str]:
    """Return the files and packages in a folder that have the name of a module of the standard library."""
    found = []
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, entry)
        name, suffix = os.path.splitext(entry)
        is_module = suffix == ".py" or os.path.isfile(os.path.join(path, "__init__.py"))
        if is_module and name in sys.stdlib_module_names:
            found.append(os.path.normpath(path))
    return found


def check_names(*folders: str) -> None:
    """Refuse folders of functions with such files.

    Raises:
        ImportError: One line that names the first of them.
    """
    for folder in folders:
        for path in hiding(folder):
            name = os.path.basename(path).partition(".")[0]
            msg = (
                f"{path}: has the name of Python's own module {name}, which other modules import; rename it, "
                "and change the parameter Runner if it is the runner's"
            )
            raise ImportError(msg)


if __name__ == "__main__":
    try:
        check_names(*sys.argv[1:])
    except ImportError as error:
        sys.exit(str(error))
