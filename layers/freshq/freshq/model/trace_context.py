"""The trace context that a task carries: the W3C headers of its producer, as one short text.

The text is the header `traceparent`; after a space follows `tracestate`, if there is one. Both are as in W3C
Trace Context (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import re
from typing import Final

# Version, trace id, id of the span, flags. Ids of only zeros are invalid; version 00 has no more parts.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACEPARENT_BYTES: Final = 55
# What W3C Trace Context asks everybody to pass on; vendors may drop what is longer.
MAX_TRACESTATE_BYTES: Final = 512
MAX_TRACE_CONTEXT_BYTES: Final = _TRACEPARENT_BYTES + 1 + MAX_TRACESTATE_BYTES
_TRACE_ID: Final = slice(3, 35)


def joined(traceparent: str, tracestate: str = "") -> str:
    """Return the text of two headers; a tracestate that is too long is left out."""
    keeps = 0 < len(tracestate) <= MAX_TRACESTATE_BYTES
    return f"{traceparent} {tracestate}" if keeps else traceparent


def headers(trace_context: str) -> dict[str, str]:
    """Return the headers of a string, by name."""
    traceparent, _, tracestate = trace_context.partition(" ")
    return {"traceparent": traceparent} | ({"tracestate": tracestate} if tracestate else {})


def trace_id_of(trace_context: str) -> str:
    """Return the trace id in a string: 32 hexadecimal digits."""
    return trace_context[_TRACE_ID]


def checked_trace_context(trace_context: str) -> str:
    """Return a string that has the right form.

    Raises:
        ValueError: If it has not.
    """
    traceparent, _, tracestate = trace_context.partition(" ")
    if not _TRACEPARENT.fullmatch(traceparent):
        raise ValueError("must begin with a W3C traceparent, such as 00-<32 hex digits>-<16 hex digits>-01")
    if len(tracestate) > MAX_TRACESTATE_BYTES or not (tracestate.isascii() and tracestate.isprintable()):
        msg = (
            f"the tracestate must be at most {MAX_TRACESTATE_BYTES} printable ASCII characters; leave it out"
        )
        raise ValueError(msg)
    return trace_context
