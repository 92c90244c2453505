"""Entry point of the `freshq` command. It imports no extra, so that it can name a missing one."""

from __future__ import annotations

import sys

from freshq.cli.errors import exit_status, print_error
from freshq.errors import MissingExtra, needs


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        with needs("cli"):
            from freshq.cli.main import app  # noqa: PLC0415 - loads the extra
    except MissingExtra as error:
        print_error(error)
        sys.exit(exit_status(error))
    app()


if __name__ == "__main__":
    main()
