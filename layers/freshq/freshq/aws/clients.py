"""The functions' clients, made by botocore's session: importing boto3 lengthens a cold start by a tenth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from botocore.config import Config
from botocore.loaders import Loader
from botocore.session import Session, get_session
from typing_extensions import override

from freshq.stores.dynamodb.calls import CLIENT_CONFIG

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_firehose import FirehoseClient
    from types_boto3_sns import SNSClient
    from types_boto3_ssm import SSMClient

# With the default of 60 s a lost answer would outlast the function, which then times out without logging.
# For the doorbells and the kill switch: three tries of at most 3 s, and 3 s of backoff.
SMALL_CALL_CONFIG: Final = Config(
    connect_timeout=1, read_timeout=2, retries={"mode": "standard", "total_max_attempts": 3}
)
# For the archive, whose calls carry up to 4 MB: twice 11 s, and a second of backoff.
DELIVERY_CONFIG: Final = Config(
    connect_timeout=1, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2}
)
LONGEST_DELIVERY_SECONDS: Final = 23.0
# Our own models, in the SDK's form: the one operation of SSM that the kill switch needs. Reading the other
# 150 takes a thirtieth of a start.
MODELS: Final = Path(__file__).parent / "models"


class FunctionsServices(Loader):
    """Loads the models of the SDK, without scanning botocore's 400 service folders."""

    @override
    def list_available_services(self, type_name: str) -> list[str]:
        """Return what `load_service_model` compares a name with."""
        return ["dynamodb", "firehose", "sns", "ssm"]


@cache
def _session() -> Session:
    session = get_session()
    session.register_component("data_loader", FunctionsServices(extra_search_paths=[str(MODELS)]))
    return session


def dynamodb_client() -> DynamoDBClient:
    """Return a client with the time limits of `Queue.dynamodb`."""
    return cast("DynamoDBClient", _session().create_client("dynamodb", config=CLIENT_CONFIG))


def firehose_client() -> FirehoseClient:
    """Return a client of the archive. A call ends within `LONGEST_DELIVERY_SECONDS`."""
    return cast("FirehoseClient", _session().create_client("firehose", config=DELIVERY_CONFIG))


def sns_client() -> SNSClient:
    """Return a client of the doorbells."""
    return cast("SNSClient", _session().create_client("sns", config=SMALL_CALL_CONFIG))


def ssm_client() -> SSMClient:
    """Return a client of the kill switch, which can only get parameters."""
    return cast("SSMClient", _session().create_client("ssm", config=SMALL_CALL_CONFIG))
