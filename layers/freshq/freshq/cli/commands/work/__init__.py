"""`freshq work`: works a queue until a signal ends it."""
