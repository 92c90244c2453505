"""Measure parts by name, each in its own process, and rewrite the pages made from the results.

    python -m benchmarks [PART ...] [--peers PYTHON] [OPTION ...]

Without a name, the counted and short parts run; with --pages, none. Other options, such as --rounds 2, go to
the parts, so name one part only with them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.figures import PARTS
from benchmarks.pages import sections_of, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Part


def listing() -> str:
    """Return one line for each part."""
    lines = [
        f"  {name:<16} {part.what}; {part.minutes} min{', by default' if part.is_default else ''}"
        for name, part in PARTS.items()
    ]
    return "parts:\n" + "\n".join(lines)


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments of the command line, and the options of the part."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        epilog=listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,  # of a part, its own help
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument(
        "--peers", metavar="PYTHON", help="Python interpreter in which other queues are installed"
    )
    parser.add_argument("--pages", action="store_true", help="rewrite the pages without measuring")
    arguments, others = parser.parse_known_args()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.exit(2, f"unknown part: {', '.join(unknown)}\n{listing()}\n")
    if not arguments.parts and "--help" in others:
        parser.exit(message=parser.format_help())
    return arguments, others


def main() -> None:
    """Run the parts, then write the pages."""
    arguments, others = parse()
    default = [] if arguments.pages else [name for name, part in PARTS.items() if part.is_default]
    for name in arguments.parts or default:
        measure(PARTS[name], arguments.peers, others)
        print(sections_of(PARTS[name].files))
    for page in write():
        print(f"wrote {page}")


def measure(part: Part, peers: str | None, others: Sequence[str] = ()) -> None:
    """Run a part in its own process with further options; if it fails, this process exits too."""
    options = ["--peers", peers] if peers and part.has_peers else []
    module, _, function = part.function.partition(":")
    program = f"from benchmarks.{module} import {function or 'main'} as run; import typer; typer.run(run)"
    subprocess.run([sys.executable, "-c", program, *options, *others], check=True)


if __name__ == "__main__":
    main()
