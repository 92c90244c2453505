"""Entry point of the `freshq-pipeline` command."""

from __future__ import annotations


def main() -> None:
    """Run the command with the process's arguments."""
    from freshq_pipeline.cli import app  # noqa: PLC0415 - loads the command's packages

    app()


if __name__ == "__main__":
    main()
