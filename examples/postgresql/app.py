"""Ships them: freshq work app:run --transaction --queue "$DATABASE_URL"."""

import sqlalchemy as sa

from freshq import Task


def run(task: Task, connection: sa.Connection) -> None:
    """Ship an order. The change of its row commits with the task, or neither does."""
    shipped = sa.text("UPDATE orders SET status = 'shipped' WHERE id = :id")
    connection.execute(shipped, {"id": task.payload["order"]})
