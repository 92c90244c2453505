"""Code that only the Lambda functions use."""

from __future__ import annotations

import os
import sys
from typing import Final

from freshq.aws.task_root import check_names

# Written by the build of the layer: its runtime and its architecture, as the template names them.
BUILT_FOR: Final = f"{os.path.dirname(__file__)}/built_for.txt"  # noqa: PTH120 - a function may hide pathlib
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


def _built_for() -> str:
    try:
        with open(BUILT_FOR, encoding="utf-8") as file:  # noqa: PTH123 - as above
            return file.read().strip()
    except FileNotFoundError:
        return ""


if task_root := os.environ.get("LAMBDA_TASK_ROOT"):
    check_names(task_root)
machine = os.uname().machine
check_layer(_built_for(), "python{}.{}".format(*sys.version_info), ARCHITECTURES.get(machine, machine))
