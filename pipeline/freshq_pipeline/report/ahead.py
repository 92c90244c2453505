"""Loads what the report needs while Java starts: it takes a second, and is needed at the end."""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from typing import Final

_PAGE: Final = "freshq_pipeline.report.page"
_PACKAGES: Final = ("altair", "pandas", "vl_convert")


def load_ahead() -> None:
    """Begin to load the report's module.

    Raises:
        ModuleNotFoundError: If a package that it needs is not installed.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            msg = f"No module named {package!r}"
            raise ModuleNotFoundError(msg, name=package)
    threading.Thread(target=import_module, args=(_PAGE,), name="report", daemon=True).start()
