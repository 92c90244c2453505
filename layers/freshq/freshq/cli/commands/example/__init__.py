"""`freshq example`: small programs with made-up data."""
