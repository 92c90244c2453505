"""Entry point of `freshq-pipeline`. It imports little, so that it can name a missing extra."""

from __future__ import annotations

import sys

from freshq.errors import MissingExtra, needs
from freshq_pipeline.errors import EXTRA, FAILED_STATUS, INTERRUPTED_STATUS, complain


def main() -> None:
    """Run the command with the process's arguments."""
    try:
        with needs(EXTRA):
            from freshq_pipeline.cli import app  # noqa: PLC0415 - an extra
    except MissingExtra as error:
        complain(str(error))
        sys.exit(FAILED_STATUS)
    except KeyboardInterrupt:  # Ctrl-C before there is a command
        sys.exit(INTERRUPTED_STATUS)
    app()


if __name__ == "__main__":
    main()
