"""Programs that tests run with their own interpreter."""

import subprocess
import sys
from typing import Any


def python(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with arguments; return its status and output."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)
