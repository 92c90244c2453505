"""Doorbells: messages that say "look at the queue", never what is in it; and the switch that stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_ssm import SSMClient

RUN: Final = "run"
STOP: Final = "stop"


class Ring(BaseModel):
    """One ring of a doorbell.

    Attributes:
        hop: Tail calls in a row before this ring.
        reason: Who rings: new work, a pass that leaves work behind, the sweep, or a person.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    hop: int = Field(default=0, ge=0)
    reason: Literal["insert", "tail_call", "sweep", "manual"] = "manual"


def parse_ring(message: str) -> Ring:
    """Return the ring that a message holds.

    Raises:
        ValueError: One line that says what is wrong with it.
    """
    try:
        return Ring.model_validate_json(message)
    except ValidationError as error:
        problem: Any = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"])) or "message"
        msg = f'{field}: {problem["msg"]}; a ring is JSON such as {{"hop": 0, "reason": "manual"}}'
        raise ValueError(msg) from None


class Doorbell:
    """A topic that rings for a worker pass."""

    def __init__(self, client: SNSClient, topic_arn: str) -> None:
        """Use a topic."""
        self._client = client
        self._topic_arn = topic_arn

    def ring(self, ring: Ring) -> None:
        """Publish a ring; an error of SNS, after the SDK's retries, is the caller's to see."""
        self._client.publish(TopicArn=self._topic_arn, Message=ring.model_dump_json())


class KillSwitch:
    """An SSM parameter: ``stop`` ends every pass, tail call and ring; ``run`` lets them go on."""

    def __init__(self, client: SSMClient, parameter: str) -> None:
        """Use a parameter."""
        self._client = client
        self._parameter = parameter

    def stops(self) -> bool:
        """Read the switch.

        Raises:
            ValueError: If it says neither run nor stop.
        """
        value = self._client.get_parameter(Name=self._parameter)["Parameter"].get("Value", "")
        if value not in (RUN, STOP):
            msg = f"kill switch {self._parameter!r}: must be {RUN!r} or {STOP!r}, is {value!r}"
            raise ValueError(msg)
        return value == STOP
