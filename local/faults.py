"""Inject faults: into the calls of a DynamoDB client, and into TCP connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from botocore.httpsession import URLLib3Session

from freshq.stores.dynamodb.schema import create_table
from local.servers import ANSWER_SECONDS, HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from types_boto3_dynamodb import DynamoDBClient

BEFORE: Final = "before-call"
AFTER: Final = "after-call"
CHUNK_BYTES: Final = 65_536


class Died(BaseException):
    """The simulated death of the process, which only the test catches."""


@contextmanager
def hooked(
    client: DynamoDBClient, moment: str, hook: Callable[..., Any], operation: str = ""
) -> Iterator[None]:
    """Run a hook at a moment of every call, or every call of one operation."""
    event = f"{moment}.dynamodb" + (f".{operation}" if operation else "")
    name = uuid.uuid4().hex
    client.meta.events.register_first(event, hook, unique_id=name)
    try:
        yield
    finally:
        client.meta.events.unregister(event, unique_id=name)


@dataclass(eq=False)
class Tally:
    """The operations of the calls seen."""

    operations: list[str] = field(default_factory=list)

    def __call__(self, model: Any, **_rest: Any) -> None:
        """Note a call; botocore passes its model."""
        self.operations.append(model.name)

    def __len__(self) -> int:
        return len(self.operations)


@contextmanager
def counted(client: DynamoDBClient) -> Iterator[Tally]:
    """Count the calls of a client."""
    tally = Tally()
    with hooked(client, BEFORE, tally):
        yield tally


@contextmanager
def crash(client: DynamoDBClient, number: int) -> Iterator[None]:
    """Kill the process after its call of this number took effect."""
    seen = 0

    def die(**_rest: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Died

    with hooked(client, AFTER, die):
        yield


@contextmanager
def replies_lost(client: DynamoDBClient, operation: str, times: int = 1) -> Iterator[None]:
    """Break the connection after a call took effect, beyond the SDK's retries."""
    left = times

    def lose(**_rest: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ConnectionClosedError(endpoint_url="http://dynamodb")

    with hooked(client, AFTER, lose, operation):
        yield


@contextmanager
def replies_lost_to_the_sdk(client: DynamoDBClient, operation: str, times: int = 1) -> Iterator[Tally]:
    """Break the connection after a request took effect, so that the SDK repeats it."""
    sent = Tally()
    session = URLLib3Session()

    def lose(request: Any, **_rest: Any) -> None:
        sent.operations.append(operation)
        if len(sent) <= times:
            status = session.send(request).status_code
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                msg = f"the request had to succeed, but was answered with {status}"
                raise RuntimeError(msg)
            raise ConnectionClosedError(endpoint_url=request.url)

    with hooked(client, "before-send", lose, operation):
        yield sent


@contextmanager
def refused(
    client: DynamoDBClient, operation: str = "", *, code: str, let_pass: int = 0, times: float = inf
) -> Iterator[None]:
    """Answer some calls in a row with an error, after the first ones."""
    seen = 0

    def refuse(model: Any, **_rest: Any) -> None:
        nonlocal seen
        seen += 1
        if let_pass < seen <= let_pass + times:
            raise ClientError({"Error": {"Code": code, "Message": "by the test"}}, model.name)

    with hooked(client, BEFORE, refuse, operation):
        yield


@contextmanager
def meanwhile(client: DynamoDBClient, operation: str, act: Callable[[], object]) -> Iterator[None]:
    """Run an action once, just before a call is sent."""
    done = False

    def interrupt(**_rest: Any) -> None:
        nonlocal done
        if not done:
            done = True
            act()

    with hooked(client, BEFORE, interrupt, operation):
        yield


@contextmanager
def halved(client: DynamoDBClient) -> Iterator[Tally]:
    """Make batch calls process only the first half of their entries, rounded up."""
    calls = Tally()
    left: dict[str, Any] = {}

    def cut(params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        calls(model)
        ((table, asked),) = params["RequestItems"].items()
        wanted = asked["Keys"] if model.name == "BatchGetItem" else asked
        done, rest = wanted[: (len(wanted) + 1) // 2], wanted[(len(wanted) + 1) // 2 :]
        wrap = (lambda keys: asked | {"Keys": keys}) if model.name == "BatchGetItem" else list
        left.clear()
        left.update({table: wrap(rest)} if rest else {})
        return params | {"RequestItems": {table: wrap(done)}}

    def hand_back(parsed: dict[str, Any], model: Any, **_rest: Any) -> None:
        parsed["UnprocessedKeys" if model.name == "BatchGetItem" else "UnprocessedItems"] = dict(left)

    with ExitStack() as hooks:
        for operation in ("BatchGetItem", "BatchWriteItem"):
            hooks.enter_context(hooked(client, "provide-client-params", cut, operation))
            hooks.enter_context(hooked(client, AFTER, hand_back, operation))
        yield calls


@contextmanager
def one_by_one(client: DynamoDBClient) -> Iterator[None]:
    """Refuse batches of conditional writes, as a role may; the store then stops sending them."""
    with refused(client, "BatchExecuteStatement", code="AccessDeniedException"):
        yield


@contextmanager
def statements_left(
    client: DynamoDBClient, code: str, *, times: int = 1, fitting: int = 1
) -> Iterator[list[int]]:
    """Make batches run only their first statements and answer the rest with an error.

    Args:
        client: The client.
        code: The code of the error.
        times: Number of affected batches.
        fitting: Number of statements that they run.

    Yields:
        The sizes of the batches that were sent.
    """
    sizes: list[int] = []
    left = 0

    def cut(params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        nonlocal left
        statements = params["Statements"]
        sizes.append(len(statements))
        left = max(0, len(statements) - fitting) if len(sizes) <= times else 0
        return params | {"Statements": statements[: len(statements) - left]}

    def answer(parsed: dict[str, Any], **_rest: Any) -> None:
        parsed["Responses"] += [{"Error": {"Code": code, "Message": "by the test"}}] * left

    with (
        hooked(client, "provide-client-params", cut, "BatchExecuteStatement"),
        hooked(client, AFTER, answer, "BatchExecuteStatement"),
    ):
        yield sizes


@contextmanager
def lagging_indexes(client: DynamoDBClient, table: str) -> Iterator[Callable[[], None]]:
    """Freeze the client's index queries at the current state of the table.

    Yields:
        A function that makes the indexes catch up with the table.
    """
    replica = f"{table}-then"
    create_table(client, replica)

    def catch_up() -> None:
        for item in items(client, replica):
            client.delete_item(TableName=replica, Key={"taskId": item["taskId"]})
        for item in items(client, table):
            client.put_item(TableName=replica, Item=item)

    def redirect(params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        return params | {"TableName": replica} if "IndexName" in params else params

    catch_up()
    with hooked(client, "provide-client-params", redirect, "Query"):
        yield catch_up


def items(client: DynamoDBClient, table: str) -> list[dict[str, Any]]:
    """Return every item of a table, including the store's own."""
    pages = client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    found = [dict(item) for page in pages for item in page["Items"]]
    return sorted(found, key=lambda item: str(item["taskId"]))


def client_at(endpoint_url: str, attempts: int = 1, connections: int = 10) -> DynamoDBClient:
    """Return a new client of a local endpoint, like a client of another process."""
    client: DynamoDBClient = boto3.client(
        "dynamodb",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(
            connect_timeout=ANSWER_SECONDS,
            max_pool_connections=connections,
            retries={"mode": "standard", "total_max_attempts": attempts},
        ),
    )
    return client


class Fault(Enum):
    """The effect of the proxy on the traffic."""

    NONE = "none"
    # Answers are delayed by `delay_seconds`.
    DELAY = "delay"
    # Requests arrive, answers do not, and the connection stays open.
    SWALLOW = "swallow"
    # Requests arrive; the first answer closes the connection.
    CUT = "cut"
    # New connections are reset, and existing ones at their next byte.
    RESET = "reset"


class Proxy:
    """A proxy between clients and a server, in a `with` block. Its fault can be changed at any time."""

    def __init__(self, port: int, host: str = HOST) -> None:
        """Take the address of the server."""
        self._server = (host, port)
        self.fault = Fault.NONE
        self.delay_seconds = 0.0
        self.connections = 0
        self.faults = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def lead_to(self, port: int) -> None:
        """Lead new connections to another port, to which the server has moved."""
        self._server = (self._server[0], port)

    def __enter__(self) -> Self:
        """Start to listen on a free port."""
        self._thread.start()
        if not self._ready.wait(ANSWER_SECONDS):
            raise TimeoutError("the proxy did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.fault is Fault.RESET:
            self._reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server)
        except OSError:
            self._reset(writer)
            return
        ways = [
            asyncio.ensure_future(self._requests(reader, server_writer, writer)),
            asyncio.ensure_future(self._answers(server_reader, writer)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the proxy ends
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, server_writer):
                each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if self.fault is Fault.RESET:
                    self._reset(client)
                    return
                server.write(data)
                await server.drain()

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await server.read(CHUNK_BYTES):
                if self.fault is Fault.SWALLOW:
                    self.faults += 1
                    continue
                if self.fault is Fault.CUT:
                    self.faults += 1
                    return
                if self.fault is Fault.DELAY:
                    self.faults += 1
                    # An answer in several pieces is delayed once.
                    asyncio.get_running_loop().call_later(self.delay_seconds, client.write, data)
                    continue
                client.write(data)
                await client.drain()
            await asyncio.sleep(self.delay_seconds if self.fault is Fault.DELAY else 0)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self.faults += 1
        # Lingering for zero seconds sends RST instead of FIN.
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
