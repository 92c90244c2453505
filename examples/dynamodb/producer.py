"""Asks for messages: python producer.py "Your table is ready".

Once, before the first start: freshq table create dynamodb://Messages
"""

import sys

from freshq import Queue

with Queue.dynamodb("Messages") as queue:
    for text in sys.argv[1:]:
        queue.put({"to": "+1 555 0100", "text": text}, max_age_seconds=300)
