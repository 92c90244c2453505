"""The environment of a function: its settings, and its clients of AWS."""

from __future__ import annotations

import gc
import os
import random
import re
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, cast

from botocore.config import Config
from botocore.loaders import Loader
from botocore.session import Session, get_session
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from freshq.aws.invocation import invocation
from freshq.errors import quoted
from freshq.model.validation import problem_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.aws.invocation import Connected
    from freshq.aws.pass_options import StoredPassOptions
    from freshq.queue.base import BaseQueue
    from freshq.stores.dynamodb.schema import Names

# Lambda sets it; tests and local programs do not.
ON_LAMBDA: Final = "AWS_LAMBDA_FUNCTION_NAME" in os.environ
# Whether many environments will be restored from a snapshot of this one.
SNAP_START: Final = os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start"
# With the default of 60 s, a lost answer would outlast the function, which would time out without a log line.
# For the doorbells and the kill switch: three tries of at most 3 s, and 3 s of backoff.
SMALL_CALL_CONFIG: Final = Config(
    connect_timeout=1, read_timeout=2, retries={"mode": "standard", "total_max_attempts": 3}
)
# For the archive, whose calls carry up to 4 MB: twice 11 s, plus a second of backoff.
DELIVERY_CONFIG: Final = Config(
    connect_timeout=1, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2}
)
LONGEST_DELIVERY_SECONDS: Final = 23.0
Arn = Annotated[str, Field(pattern=r"^arn:")]

if ON_LAMBDA:
    gc.disable()  # imports leave no garbage; collecting during them takes a tenth of a start


class EnvironmentSettings(BaseModel):
    """Settings from the environment. The variable of a field is the prefix plus its name in capitals.

    Attributes:
        PREFIX: Prefix of the variables.
    """

    # A function uses only one of the classes.
    model_config = ConfigDict(frozen=True, defer_build=True)

    PREFIX: ClassVar[str] = "FRESHQ_"

    @classmethod
    def load(cls) -> Self:
        """Read the environment.

        Raises:
            ValueError: One line that names the first variable that is missing or wrong.
        """
        names = {field: cls.PREFIX + field.upper() for field in cls.model_fields}
        given = {field: os.environ[name] for field, name in names.items() if name in os.environ}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problem = problem_of(error)
            field, *inside = map(str, problem.path)
            name = ": ".join([cls.PREFIX + field.upper(), *inside])
            msg = f"{name}: {problem.reason}; set it in the function's environment (template.yaml)"
            raise ValueError(msg) from None


class QueueSettings(EnvironmentSettings):
    """The location of the queue. Its options are stored with it.

    Attributes:
        table: Name of the DynamoDB table.
        attach_key: Hash key of an application's table that freshq is attached to; empty for a table of
            freshq's own.
        queue_name: Name of the queue in the table.
    """

    table: Annotated[str, Field(min_length=3)]
    attach_key: str = ""
    queue_name: str = "default"

    @classmethod
    @override
    def load(cls) -> Self:
        """Read the environment; a canary has a queue of its own.

        Raises:
            ValueError: One line that names the first variable that is missing or wrong.
        """
        settings = super().load()
        queue = invocation().canary_queue
        return settings if queue is None else settings.model_copy(update={"queue_name": queue})

    def names(self, client: DynamoDBClient) -> Names | None:
        """Return the names in an attached table; None for a table of freshq's own.

        Raises:
            ValueError: If the table has another hash key, or a hash key that is not text: the roles of the
                functions compare keys of items as strings.
            StoreError: If DynamoDB did not answer, or the table does not exist.
        """
        if not self.attach_key:
            return None
        # Only attached tables need these.
        from freshq.stores.dynamodb.attached.attach import described_key
        from freshq.stores.dynamodb.schema import Names

        key = described_key(client, self.table, self.attach_key)
        if key.hash.attribute_type != "S":
            msg = (
                f"FRESHQ_ATTACH_KEY: {self.attach_key!r} is of type {key.hash.attribute_type}; the "
                "functions' roles allow only tables whose hash key is of type S; use freshq work instead"
            )
            raise ValueError(msg)
        return Names.attached(key)

    def queue(self, client: DynamoDBClient | None = None) -> BaseQueue:
        """Return the queue that the settings describe.

        Args:
            client: A low-level client; None for one from the environment.

        Raises:
            ValueError: If the table cannot be used, see `names`.
            StoreError: If the table is attached, and DynamoDB did not answer.
        """
        from freshq.queue.queue import Queue

        used = client or dynamodb_client()
        if self.names(used) is not None:
            return Queue.dynamodb(self.table, used, attach=True, key=self.attach_key, name=self.queue_name)
        # Nobody uses the queue of a canary again, so its options are not stored: nothing would delete them.
        is_canary = invocation().canary_queue is not None
        return Queue.dynamodb(self.table, used, name=self.queue_name, override=is_canary)

    def pass_options(self, client: DynamoDBClient) -> StoredPassOptions:
        """Return the options of the worker passes, which are read when they are needed."""
        from freshq.aws.pass_options import StoredPassOptions

        return StoredPassOptions(self.table, self.queue_name, client, self.names(client))


# Names that freshq, its SDK or Lambda reads, except those of the demonstration. template.yaml has the same
# list.
RESERVED: Final = re.compile(r"(AWS|LAMBDA|POWERTOOLS)_|_|FRESHQ_(?!DEMO_)")


def check_runner_environment(variables: Mapping[str, str]) -> None:
    """Refuse variables that would redirect freshq itself, or that no environment can have.

    Raises:
        ValueError: One line that names the first of them, without its value.
    """
    for name, value in variables.items():
        shown = f"variable {quoted(name)}"
        if RESERVED.match(name):
            msg = f"{shown} would change freshq itself; use a name that does not begin like that"
            raise ValueError(msg)
        if not name or "=" in name or "\0" in name:
            msg = f"{shown} cannot be the name of a variable; use letters, digits and underscores"
            raise ValueError(msg)
        if "\0" in value:
            msg = f"{shown} has a NUL, which no variable can hold; leave it out"
            raise ValueError(msg)


def connect_at_init(connect: Connected[Any]) -> None:
    """Make the connections of a function while Lambda initializes it, with more CPU than an invocation has.

    Elsewhere the first invocation makes them. Initialization ends here, and garbage collection starts. With
    SnapStart, each restored environment makes its own connections.

    Args:
        connect: Makes them.

    Raises:
        ValueError: If a setting is missing or wrong.
    """
    if ON_LAMBDA:
        connect()
        gc.freeze()
        gc.enable()
    if SNAP_START:
        # Only runtimes with SnapStart have this package.
        from snapshot_restore_py import register_after_restore

        register_after_restore(renew, connect)


def renew(connect: Connected[Any]) -> None:
    """Replace state that environments restored from one snapshot must not share, or that is stale.

    Clients and their open connections, the time of the store, stored options, the names of the worker and of
    its records, and the random numbers of jitter. Tokens and ids come from the operating system.

    Args:
        connect: Makes the connections.
    """
    random.seed()
    connect.cache_clear()
    connect()


# Models in the SDK's form with the one operation of SSM that the kill switch needs. Reading the other 150
# takes a thirtieth of a start.
MODELS: Final = Path(__file__).parent / "models"


class FunctionsServices(Loader):
    """Loads the models of the SDK, without scanning botocore's 400 service folders."""

    @override
    def list_available_services(self, type_name: str) -> list[str]:
        """Return the names that `load_service_model` accepts."""
        return ["dynamodb", "firehose", "sns", "ssm"]


@cache
def session() -> Session:
    """Return the session of all clients. It finds the small model of Systems Manager in this folder."""
    made = get_session()
    if region := os.environ.get("AWS_REGION"):  # botocore reads only AWS_DEFAULT_REGION
        made.set_config_variable("region", region)
    made.register_component("data_loader", FunctionsServices(extra_search_paths=[str(MODELS)]))
    return made


# Making a client changes the session, so two threads must not do it at the same time.
_making: Final = threading.Lock()


def client_of(service: str, config: Config) -> Any:
    """Return a client of a service."""
    with _making:
        return session().create_client(service, config=config)


def dynamodb_client() -> DynamoDBClient:
    """Return a client with the time limits of `Queue.dynamodb`."""
    from freshq.stores.dynamodb.calls import CLIENT_CONFIG  # the archive uses no table

    return cast("DynamoDBClient", client_of("dynamodb", CLIENT_CONFIG))
