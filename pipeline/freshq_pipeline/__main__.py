"""Entry point of the `freshq-pipeline` command; imports little, so that it can name a missing extra."""

from __future__ import annotations

import sys

from freshq_pipeline.errors import complain, missing_package


def main() -> None:
    """Run the command with the process's arguments."""
    try:
        from freshq_pipeline.cli import app  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        failure = missing_package(error)
        complain(str(failure))
        sys.exit(failure.status)
    app()


if __name__ == "__main__":
    main()
