"""The queue: its verbs, for any store, and what its processes share."""
