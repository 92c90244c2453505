"""The functions' own models of services agree with the SDK's."""

import io
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.loaders import Loader

from freshq.aws import environment

MODELS = sorted(environment.MODELS.rglob("service-2.json"))


def part_of(own: Any, whole: Any) -> bool:
    """Return whether an object says nothing that another does not say."""
    if isinstance(own, dict):
        return all(name in whole and part_of(value, whole[name]) for name, value in own.items())
    return bool(own == whole)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.parts[-3])
def test_a_model_is_a_part_of_the_sdks(model: Any) -> None:
    service, version = model.parts[-3:-1]
    whole = Loader().load_service_model(service, "service-2", version)
    own = json.loads(model.read_text("utf-8"))
    assert part_of(own, whole)
    assert version == whole["metadata"]["apiVersion"]


class Answer(io.BytesIO):
    """The body of an answer, as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        """Yield the body."""
        yield self.read()


def test_the_kill_switch_is_read_with_it() -> None:
    """The request is the same as that of the whole model, and so is the value."""
    asked: list[tuple[Any, ...]] = []

    def answer(request: Any, **_rest: Any) -> AWSResponse:
        same = ("X-Amz-Target", "Content-Type")
        asked.append((request.method, request.url, request.body, *map(request.headers.get, same)))
        body = Answer(b'{"Parameter": {"Value": "stop", "Version": 3, "Type": "String"}}')
        return AWSResponse(request.url, 200, HTTPHeaders(), body)

    own, whole = environment.client_of("ssm", environment.SMALL_CALL_CONFIG), boto3.client("ssm")
    assert own.meta.service_model.operation_names == ["GetParameter"]
    for client in (own, whole):
        events: Any = client.meta.events  # a handler may answer, which its types do not say
        events.register_first("before-send.ssm.GetParameter", answer)
        assert client.get_parameter(Name="/switch")["Parameter"].get("Value") == "stop"
    first, second = asked
    assert first == second
