"""The data pipeline of freshq: what happened to every task, and what would have under another policy."""
