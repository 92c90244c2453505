"""`freshq dashboard`: a queue in a browser. It reads the queue, and serves the data to its own page."""
