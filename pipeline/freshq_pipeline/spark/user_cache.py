"""The folder for what is made once on a machine, and can be made again at any time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `freshq` in XDG_CACHE_HOME, by default in ~/.cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshq"
