"""Asks for prices: python producer.py ABC XYZ.

Once, before the first start: freshq table create sqlite:///tasks.db
"""

import sys

from freshq import Queue

with Queue.sql("sqlite:///tasks.db") as queue:
    for symbol in sys.argv[1:]:
        receipt = queue.put({"symbol": symbol}, task_id=f"quote-{symbol}")
        print(receipt.task_id, receipt.outcome)
