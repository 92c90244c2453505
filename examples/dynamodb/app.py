"""Sends them: freshq work app:run --at-most-once --queue dynamodb://Messages."""

from freshq import Task


def run(task: Task) -> None:
    """Send a message. Each message is delivered at most once; it is lost if this fails."""
    print(f"to {task.payload['to']}: {task.payload['text']}")
