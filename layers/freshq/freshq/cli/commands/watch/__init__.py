"""`freshq watch`: a live view of a queue."""
