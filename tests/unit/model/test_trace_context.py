"""The text of a trace context, to and from the headers of W3C Trace Context."""

import pytest

from freshq.model.task import MAX_TRACESTATE_BYTES, headers, joined, trace_id_of

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LONGEST = "v=" + "x" * (MAX_TRACESTATE_BYTES - 2)


@pytest.mark.parametrize(
    ("tracestate", "text"),
    [
        ("", PARENT),
        ("v", f"{PARENT} v"),
        ("a=1 2,b=3", f"{PARENT} a=1 2,b=3"),
        (LONGEST, f"{PARENT} {LONGEST}"),
        (f"{LONGEST}x", PARENT),
    ],
)
def test_a_text_has_both_headers_unless_one_is_too_long(tracestate: str, text: str) -> None:
    assert joined(PARENT, tracestate) == text
    kept = {"tracestate": tracestate} if text != PARENT else {}
    assert headers(text) == {"traceparent": PARENT} | kept
    assert trace_id_of(text) == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_traceparent_may_be_alone() -> None:
    assert joined(PARENT) == PARENT
