"""Entry point of the `freshq` command. It imports no extra, so that it can name a missing one."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Final

from freshq.cli.errors import exit_status, occupy_closed_streams, print_error
from freshq.errors import MissingExtra, escape_unencodable, needs

# New objects before garbage is collected; a start makes fewer.
GARBAGE_OBJECTS: Final = 100_000


def main() -> None:
    """Run the command line and exit with its status."""
    # Modules stay. Collecting garbage among them, at start and again at exit, takes a third of a put.
    gc.set_threshold(GARBAGE_OBJECTS)
    atexit.register(gc.freeze)
    occupy_closed_streams()
    escape_unencodable()
    try:
        with needs("cli"):
            from freshq.cli.main import app
    except MissingExtra as error:
        print_error(error)
        sys.exit(exit_status(error))
    app()


if __name__ == "__main__":
    main()
