"""The `freshq` command."""

from freshq.cli.main import app

__all__ = ["app"]
