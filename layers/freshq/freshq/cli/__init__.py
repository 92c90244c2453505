"""The `freshq` command."""
