"""`freshq work`: works a queue until it is told to end."""
