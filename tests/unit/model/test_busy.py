"""When a downstream takes requests again, as `Busy` or an exception of a client for HTTP says."""

import email.message
import pickle
import urllib.error
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import ClientError

from freshq import Busy
from freshq.model.answers import busy_of

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


class ClientsError(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("too many requests")
        self.__dict__ |= attributes


def of_response(status: object, headers: object) -> ClientsError:
    return ClientsError(response=SimpleNamespace(status_code=status, headers=headers))


def of_urllib(seconds: str) -> Exception:
    headers = email.message.Message()
    headers["retry-AFTER"] = seconds
    return urllib.error.HTTPError("http://x", 503, "busy", headers, None)


def of_botocore(status: int) -> Exception:
    headers = {"retry-after": "7"}
    metadata: Any = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": "Throttling"}, "ResponseMetadata": metadata}, "Invoke")


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (of_response(429, {"Retry-After": "7"}), 7),
        (of_response(HTTPStatus.TOO_MANY_REQUESTS, {"retry-after": "1.5"}), 1.5),
        (of_response(429, {"Retry-After": "0"}), 0),
        (of_response(429, {"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"}), 60),
        (of_response(429, {"Retry-After": "Sun, 06 Nov 1994 08:50:37 -0000"}), 60),
        (of_response(429, {"Retry-After": "Sun, 06 Nov 1994 08:00:00 GMT"}), 0),
        (of_response(503, {"Retry-After": "31536000"}), 86_400),
        (ClientsError(status=429, headers={"Retry-After": "7"}), 7),
        (of_urllib("7"), 7),
        (of_botocore(429), 7),
    ],
)
def test_a_response_says_when_to_try_again(error: Exception, seconds: float) -> None:
    busy = busy_of(error, NOW)
    assert busy is not None
    assert (busy.retry_after_seconds, busy.delay_seconds, str(busy)) == (seconds, seconds, str(error))


class Unreadable(Exception):
    @property
    def response(self) -> None:
        raise RuntimeError("no response yet")


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        of_response(429, {}),
        of_response(429, None),
        of_response(500, {"Retry-After": "7"}),
        of_response("429", {"Retry-After": "7"}),
        of_response(429, {"Retry-After": "-1"}),
        of_response(429, {"Retry-After": "nan"}),
        of_response(429, {"Retry-After": "inf"}),
        of_response(429, {"Retry-After": "soon"}),
        of_response(429, {"Retry-After": None}),
        of_botocore(400),
        ClientsError(response=MagicMock()),
        Unreadable(),
    ],
)
def test_any_other_exception_says_nothing(error: Exception) -> None:
    assert busy_of(error, NOW) is None


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "7", True])
def test_a_wrong_time_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"^retry_after_seconds: "):
        Busy(retry_after_seconds=seconds)


def test_busy_keeps_its_time_between_processes() -> None:
    busy = pickle.loads(pickle.dumps(Busy("full", retry_after_seconds=2)))  # noqa: S301 - made here
    assert (str(busy), busy.retry_after_seconds, busy.delay_seconds) == ("full", 2, 2)
    assert (Busy().retry_after_seconds, Busy().delay_seconds) == (None, 0)
