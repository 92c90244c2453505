"""Measures parts by name, each in a process of its own, and writes the pages that are made from the results.

    python -m benchmarks [PART ...] [--peers PYTHON] [OPTION ...]

Without a name it runs the counted and short ones; with --pages none. Other options, such as --rounds 2, go to
the parts: name one part then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.figures import PARTS
from benchmarks.pages import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Part


def listing() -> str:
    """Return a line for each part."""
    lines = [
        f"  {name:<16} {part.what}; {part.minutes} min{', by default' if part.is_default else ''}"
        for name, part in PARTS.items()
    ]
    return "parts:\n" + "\n".join(lines)


def main() -> None:
    """Run the parts, then write the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", epilog=listing(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has other queues")
    parser.add_argument("--pages", action="store_true", help="measure nothing, rewrite the pages")
    arguments, others = parser.parse_known_args()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.exit(2, f"no such part: {', '.join(unknown)}\n{listing()}\n")
    default = [] if arguments.pages else [name for name, part in PARTS.items() if part.is_default]
    for name in arguments.parts or default:
        measure(PARTS[name], arguments.peers, others)
    for page in write():
        print(f"wrote {page}")


def measure(part: Part, peers: str | None, others: Sequence[str] = ()) -> None:
    """Run a part in a process of its own, with further options; its failure ends this process."""
    options = ["--peers", peers] if peers and part.has_peers else []
    module, _, function = part.module.partition(":")
    program = f"from benchmarks.{module} import {function or 'main'} as run; run()"
    subprocess.run([sys.executable, "-c", program, *options, *others], check=True)


if __name__ == "__main__":
    main()
