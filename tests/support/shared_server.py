"""One DynamoDB Local for all processes of a test run: each start of Java takes seconds of a processor."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from local.servers import DynamoDBLocal, Unavailable, client_of, dynamodb_local_is_required
from types_boto3_dynamodb import DynamoDBClient

SERVERS: Final = pytest.StashKey[ExitStack]()
CLIENT: Final = pytest.StashKey[DynamoDBClient]()
AGAIN_SECONDS: Final = 0.5
MAX_ATTEMPTS: Final = 10
# Tables that the running test created. DynamoDB Local reads the descriptions of all tables again and again,
# and each addition or deletion of an index takes more than a second longer for each that has a stream.
_created: Final[list[str]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no server."""
    config.stash[SERVERS] = ExitStack()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the server after the last process has ended; no test's time limit includes that wait."""
    session.config.stash[SERVERS].close()


@pytest.fixture(scope="session")
def dynamodb_local(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> DynamoDBClient:
    """Return a client of Amazon's DynamoDB Local; skip visibly if it is not installed."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # all processes of a run have their folders there
    try:
        address = request.config.stash[SERVERS].enter_context(_shared(folder))
    except Unavailable as missing:
        if dynamodb_local_is_required():
            raise
        pytest.skip(str(missing))
    client = client_of(address)
    client.meta.events.register("after-call.dynamodb.CreateTable", _note_table)
    again: Any = _again_after_failure  # its answer counts, whatever the types say
    for change in ("UpdateTable", "DeleteTable"):
        client.meta.events.register(f"needs-retry.dynamodb.{change}", again)
    request.config.stash[CLIENT] = client
    return client


def _note_table(parsed: Any, **_call: object) -> None:
    if described := parsed.get("TableDescription"):
        _created.append(described["TableName"])


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """Leave the tables of a fixture that other tests use, too."""
    before = len(_created)
    result = yield
    if fixturedef.scope != "function":
        del _created[before:]
    return result


def _again_after_failure(response: Any, attempts: int, **_call: object) -> float | None:
    """Return after how many seconds to change a table again; None if that is not needed.

    DynamoDB Local sometimes fails while other processes change tables, too.
    """
    code = None if response is None else response[1].get("Error", {}).get("Code")
    return AGAIN_SECONDS if code == "InternalFailure" and attempts < MAX_ATTEMPTS else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[Any]:
    """Delete its tables after everything else that the test leaves."""
    result = yield
    while _created:
        client = item.config.stash[CLIENT]
        with suppress(client.exceptions.ResourceNotFoundException):
            client.delete_table(TableName=_created.pop())
    return result


@contextmanager
def _shared(folder: Path) -> Iterator[str]:
    """Yield the address of the server; the process that started it waits for the others, and stops it.

    Args:
        folder: A folder that all processes of the run share.
    """
    address, lock, users = (folder / f"dynamodb-local.{name}" for name in ("address", "lock", "users"))
    with lock.open("w") as starts, users.open("w") as uses, ExitStack() as owned:
        fcntl.flock(starts, fcntl.LOCK_EX)
        is_first = not address.exists()
        if is_first:
            server = owned.enter_context(DynamoDBLocal())
            address.write_text(server.endpoint_url, "utf-8")
        fcntl.flock(uses, fcntl.LOCK_SH)
        fcntl.flock(starts, fcntl.LOCK_UN)
        yield address.read_text("utf-8")
        if is_first:
            # No process joins from here on; later ones start another server.
            fcntl.flock(starts, fcntl.LOCK_EX)
            fcntl.flock(uses, fcntl.LOCK_EX)
            address.unlink()
