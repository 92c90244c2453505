"""Asks for messages: python producer.py "Your table is ready"."""

import sys

from freshq import Queue

with Queue.dynamodb("Messages") as queue:
    queue.create_table()
    for text in sys.argv[1:]:
        queue.put({"to": "+1 555 0100", "text": text}, max_age_seconds=300)
