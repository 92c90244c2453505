"""Entry point of `freshq-pipeline`. It imports little, so that it can name a missing extra."""

from __future__ import annotations

import os
import sys

from freshq.errors import MissingExtra, escape_unencodable, needs
from freshq_pipeline.errors import EXTRA, FAILED_STATUS, INTERRUPTED_STATUS, complain


def main() -> None:
    """Run the command with the process's arguments."""
    escape_unencodable()
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - Path.home() raises an error
        # Neither HOME nor an entry for this user, as in a container. Packages fail to import then.
        os.environ["HOME"] = os.devnull
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
