"""The queue: its verbs, on any store, and the state that its processes share."""
