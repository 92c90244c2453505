"""Requests as events of API Gateway, in the payload format 2.0."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

TEXT_TYPES: Final = ("text/", "application/json", "application/javascript", "application/xml")


def event_of(
    method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the event of a request.

    Args:
        method: Its method.
        path: Its path and query, encoded.
        body: Its body: bytes, or a value that is sent as JSON; None for none.
        headers: Its headers.
    """
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if not isinstance(body, bytes) and body is not None:
        sent = {"content-type": "application/json", **sent}
    raw_path, _, query = path.partition("?")
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": raw_path,
        "rawQueryString": query,
        "headers": {**sent, "x-forwarded-proto": "https"},
        "requestContext": {
            "authorizer": {"iam": {"userArn": "arn:aws:iam::123456789012:user/ada"}},
            "http": {"method": method, "path": raw_path},
            "stage": "$default",
        },
        "isBase64Encoded": False,
    }
    if content:
        is_text = sent.get("content-type", "").lower().startswith(TEXT_TYPES)
        event["isBase64Encoded"] = not is_text
        event["body"] = content.decode() if is_text else base64.b64encode(content).decode()
    return event


def event_of_vector(vector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of the request of a vector in examples/http."""
    asked = vector["request"]
    text = asked.get("text")
    body = text.encode() if text is not None else asked.get("body")
    return event_of(asked["method"], asked["path"], body, asked.get("headers"))


def difference(vector: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Return how an answer differs from the answer that a vector expects; empty if it does not."""
    content = json.loads(answer["body"])
    found = {name: content.get(name) for name in vector["answer"]}
    if (answer["statusCode"], found) == (vector["status"], vector["answer"]):
        return ""
    return f"{vector['name']}: {answer['statusCode']} {content}"
