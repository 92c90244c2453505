"""The holder of a task in landed events: a digest of the lease token, and the worker's name."""

import pytest

from freshq.model.codec import holder


@pytest.mark.parametrize(
    ("token", "fields"),
    [
        (None, {}),
        ("w1:1f", {"lease": "30ee7cbd94ab7122", "worker": "w1"}),
        # The name of a worker may have a colon; a token has none.
        ("eu:w1:1f", {"lease": "63346c7979e123a7", "worker": "eu:w1"}),
        (":1f", {"lease": "d13f9449ddb72c29"}),
        ("1f", {"lease": "20af2e45e35866cd"}),
        ("\ud800", {"lease": "8a8de823d5ed3e12"}),
    ],
)
def test_fields_of_a_token(token: str | None, fields: dict[str, str]) -> None:
    assert holder(token) == fields
