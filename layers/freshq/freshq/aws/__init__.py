"""Code that only the Lambda functions use."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Final

# Written by the build of the layer: its runtime and its architecture, as the template names them.
BUILT_FOR: Final = Path(__file__).with_name("built_for.txt")
ARCHITECTURES: Final = {"aarch64": "arm64"}


def check_layer(built_for: str, runtime: str, architecture: str) -> None:
    """Refuse a layer that was built for another Python or another processor.

    Its compiled packages would fail at their import, with an error that names neither.

    Args:
        built_for: Such as "python3.13 arm64"; empty if it was built for the machine that ran the build.
        runtime: Of this function, such as "python3.13".
        architecture: Likewise, "arm64" or "x86_64".

    Raises:
        ImportError: If they differ.
    """
    here = f"{runtime} {architecture}"
    if built_for not in ("", here):
        msg = (
            f"the layer of freshq was built for {built_for}, and this function runs on {here}: build it with "
            f"LAYER_RUNTIME={runtime} LAYER_ARCHITECTURE={architecture}"
        )
        raise ImportError(msg)


if BUILT_FOR.exists():
    check_layer(
        BUILT_FOR.read_text("utf-8").strip(),
        "python{}.{}".format(*sys.version_info),
        ARCHITECTURES.get(platform.machine(), platform.machine()),
    )
