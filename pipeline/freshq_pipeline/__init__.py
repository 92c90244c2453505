"""The data pipeline of freshq: the outcome of every task, and replays under other policies."""
