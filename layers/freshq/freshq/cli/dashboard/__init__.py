"""`freshq dashboard`: a queue in a browser. It reads the queue, and serves what it found to its own page."""
