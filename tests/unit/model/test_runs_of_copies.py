"""A copy of a task can act for the task in its run."""

from freshq.model.task import handle_of, keep_clock, keep_run
from freshq.testing import make_task


def test_a_copy_has_the_handle_and_the_clock_of_the_run() -> None:
    task, copy = make_task(1), make_task(2)
    keep_clock(task, lambda: 7.0)
    keep_run(copy, task)
    assert handle_of(copy) is handle_of(task)
    assert copy.deadline is not None
    assert copy.seconds_left() == copy.deadline - 7.0
