"""A command must not print passwords, control characters of tasks or stack traces."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typing_extensions import override

from freshq import Queue
from freshq.addresses import Address, dynamodb_client
from freshq.aws.environment import session
from freshq.cli.main import app
from freshq.cli.output import compact_json
from freshq.cli.stacks import client_of
from freshq.stores.dynamodb.calls import default_client
from freshq.stores.sql.url import parsed_url
from tests.support.refusals import refused

WRONG_URLS = [
    "postgres://user:s3cret@host:port/db",
    "postgresql://user:s3cret@host:port/db",
    "postgresql://user:s3cret/s3cret@host:port/db",
    "mysql+pymysql://user:s3cret@s3cret@host/db",
    "oracle://user:s3cret@host/db",
    "user:s3cret@host",
    "sqlite://user:s3cret@host",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_no_error_shows_the_password_of_a_url(url: str) -> None:
    with refused("url") as raised:
        Queue.sql(url)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        *WRONG_URLS,
        "postgresql://user:s3cret@host/db?password",
        "postgresql://host/db?password=s3cret&password=s3cret",
        "dynamodb://table?password=s3cret",
    ],
)
@pytest.mark.parametrize("arguments", [("stats", "--queue"), ("table", "create")])
def test_no_command_shows_the_password_of_a_url(url: str, arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*arguments, url])
    assert done.exit_code == 2
    assert "s3cret" not in done.output
    assert done.stderr.count("\n") == 1


def test_postgres_is_postgresql() -> None:
    assert Address.parse("postgres://user@host/db") == Address.parse("postgresql://user@host/db")
    assert parsed_url("postgres://user@host/db") == parsed_url("postgresql://user@host/db")


def test_control_and_bidirectional_characters_of_a_payload_are_escaped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    queue = Queue.sql(url)
    queue.create_table()
    payload = {"text": "a\u202eb\x9b2Jc\x7fd é"}
    queue.put(payload, task_id="a")
    queue.close()
    for command in (["get", "a"], ["list"], ["claim"], ["complete", "--help"]):
        shown = CliRunner().invoke(app, [*command, "--queue", url] if "--help" not in command else command)
        assert not {"\u202e", "\x9b", "\x7f"} & set(shown.stdout)
    assert json.loads(compact_json(payload)) == payload
    assert "é" in compact_json(payload)


class NotCloudFormation(http.server.BaseHTTPRequestHandler):
    """Answers as an endpoint of something else does."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>It works!")

    @override
    def log_message(self, format: str, *args: object) -> None:  # its name
        del format, args


@pytest.fixture
def other_endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotCloudFormation) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_wrong_endpoint_is_one_line(other_endpoint: str) -> None:
    done = CliRunner().invoke(
        app, ["stats", "--stack", "app"], env={"AWS_ENDPOINT_URL_CLOUDFORMATION": other_endpoint}
    )
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert "check the endpoint" in done.stderr


@pytest.mark.parametrize(
    "client",
    [
        default_client,
        lambda: dynamodb_client("Tasks", None, None),
        lambda: client_of("cloudformation"),
        lambda: session.__wrapped__().create_client("dynamodb"),
    ],
    ids=["library", "address", "stack", "functions"],
)
@pytest.mark.parametrize("other", [None, "us-west-2"])
def test_the_region_of_aws_region_counts(
    monkeypatch: pytest.MonkeyPatch, client: Callable[[], Any], other: str | None
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    if other is not None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", other)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert client().meta.region_name == "eu-north-1"


def test_a_missing_region_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    done = CliRunner().invoke(app, ["stats", "--stack", "app"])
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert "region" in done.stderr
