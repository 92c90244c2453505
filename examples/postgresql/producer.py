"""Takes orders: python producer.py 7 8. The row and the task of an order commit together.

Once, before the first start: freshq table create $DATABASE_URL
"""

import os
import sys

import sqlalchemy as sa

from freshq import Queue

url = os.environ["DATABASE_URL"]  # postgresql+psycopg://USER@HOST/NAME
queue = Queue.sql(url)
engine = sa.create_engine(url)
with engine.begin() as connection:
    connection.execute(sa.text("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, status TEXT)"))
    for order in sys.argv[1:]:
        connection.execute(sa.text("INSERT INTO orders VALUES (:id, 'new')"), {"id": order})
        queue.put({"order": order}, task_id=f"ship-{order}", connection=connection)
engine.dispose()
queue.close()
