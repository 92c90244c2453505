"""The traceback of an exception of another process."""

import pytest

from freshq.model.answers import ChildTraceback, traceback_text

THERE = 'Traceback (most recent call last):\n  File "there.py", line 1\nValueError: bad'


def test_it_is_the_traceback_of_the_copy_here() -> None:
    with pytest.raises(ValueError, match="bad") as raised:
        raise ValueError("bad") from ChildTraceback(THERE)
    assert traceback_text(raised.value) == THERE


def test_it_is_shown_as_the_cause() -> None:
    cause = ChildTraceback(THERE)
    assert cause.args == (THERE,)
    assert str(cause) == f'\n"""\n{THERE}"""'
