"""Ring the doorbells between functions, and read the rings."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from freshq.aws.environment import SMALL_CALL_CONFIG, Arn, QueueSettings, client_of
from freshq.aws.invocation import part_of, records_of, text_of
from freshq.model.validation import problem_of
from freshq.stores.dynamodb.passes import WorkerPasses

if TYPE_CHECKING:
    from collections.abc import Callable

    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_sns import SNSClient
    from types_boto3_ssm import SSMClient

    from freshq.aws.pass_options import StoredPassOptions

RUN: Final = "run"
STOP: Final = "stop"
# Reasons for not ringing, and for not making a pass.
SWITCHED_OFF: Final = "the kill switch says stop"
PASSES_UNDER_WAY: Final = "enough worker passes are under way"


class WakeUpSettings(QueueSettings):
    """Settings of all functions of the wake-up loop.

    Attributes:
        kill_switch_parameter: Name of the SSM parameter of the kill switch.
    """

    kill_switch_parameter: str


class DoorbellSettings(WakeUpSettings):
    """Settings of a function that rings for a worker pass.

    Attributes:
        process_tasks_topic_arn: Topic that starts a worker pass.
    """

    process_tasks_topic_arn: Arn


class Ring(BaseModel):
    """One message on the doorbell.

    Attributes:
        hop: Consecutive tail calls before this ring.
        reason: New work, a pass that left work behind, the sweep, or a person.
        chain: Id of the chain of rings and passes that this ring belongs to, the same in every log line.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    hop: int = Field(default=0, ge=0)
    reason: Literal["insert", "tail_call", "sweep", "manual"] = "manual"
    chain: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] = Field(
        default_factory=lambda: uuid.uuid4().hex
    )


def parse_ring(message: str) -> Ring:
    """Return the ring in a message.

    Raises:
        ValueError: One line that names the wrong field.
    """
    try:
        return Ring.model_validate_json(message)
    except ValidationError as error:
        problem = problem_of(error)
        field = problem.field or "message"
        msg = f'{field}: {problem.message}; a ring is JSON such as {{"hop": 0, "reason": "manual"}}'
        raise ValueError(msg) from None


def parse_rings(event: object) -> list[Ring]:
    """Return the rings in an SNS event.

    Raises:
        ValueError: One line that names the wrong part of the event, or the wrong field of a ring.
    """
    return [parse_ring(text_of(part_of(record, "Sns"), "Message") or "") for record in records_of(event)]


class KillSwitch:
    """An SSM parameter: ``stop`` prevents passes, tail calls and rings; ``run`` allows them."""

    def __init__(self, client: SSMClient, parameter: str) -> None:
        self._client = client
        self._parameter = parameter

    def stops(self) -> bool:
        """Read the switch.

        Raises:
            ValueError: If its value is neither run nor stop.
        """
        value = self._client.get_parameter(Name=self._parameter)["Parameter"].get("Value", "")
        if value not in (RUN, STOP):
            msg = f"kill switch {self._parameter!r}: must be {RUN!r} or {STOP!r}, is {value[:20]!r}"
            raise ValueError(msg)
        return value == STOP


@dataclass(frozen=True)
class WakeUp:
    """The doorbell, and the reasons not to ring it.

    Attributes:
        topic_arn: Topic of the doorbell.
        sns: Returns the client of the topic. The first call makes it, because passes and sweeps rarely ring.
        switch: The kill switch.
        passes: The pass slots.
        options: The stored options of the passes.
    """

    topic_arn: str
    sns: Callable[[], SNSClient]
    switch: KillSwitch
    passes: WorkerPasses
    options: StoredPassOptions

    @classmethod
    def connect(cls, settings: WakeUpSettings, topic_arn: str, client: DynamoDBClient) -> WakeUp:
        """Return the doorbell of a topic, with clients from the environment.

        Args:
            settings: The queue, its pass slots and the kill switch.
            topic_arn: The topic.
            client: A client for the table with the pass slots.
        """
        passes = WorkerPasses(settings.table, settings.queue_name, client, names=settings.names(client))
        switch = KillSwitch(client_of("ssm", SMALL_CALL_CONFIG), settings.kill_switch_parameter)
        sns = cache(partial(client_of, "sns", SMALL_CALL_CONFIG))
        return cls(topic_arn, sns, switch, passes, settings.pass_options(client))

    def ring(self, ring: Ring) -> None:
        """Publish a ring. Errors of SNS, after the SDK's retries, are raised."""
        self.sns().publish(TopicArn=self.topic_arn, Message=ring.model_dump_json())

    def reason_not_to_ring(self) -> str | None:
        """Return why ringing is forbidden or useless; None if it is allowed and useful."""
        if self.switch.stops():
            return SWITCHED_OFF
        return PASSES_UNDER_WAY if self.enough_passes() else None

    def enough_passes(self) -> bool:
        """Return whether every pass slot is taken."""
        return self.passes.all_taken(self.options.current().worker_passes)
