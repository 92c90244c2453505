"""One DynamoDB Local for all processes of a test run: each start of Java takes seconds of a processor."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from local.servers import DynamoDBLocal, Unavailable, client_of, dynamodb_local_is_required
from types_boto3_dynamodb import DynamoDBClient

SERVERS: Final = pytest.StashKey[ExitStack]()


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
    return client_of(address)


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
