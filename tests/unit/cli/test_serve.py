"""`freshq serve`: access, signals, and producers in other languages while the server is killed."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from freshq import Queue, Task
from freshq.cli.commands import serve as serve_module
from freshq.cli.commands.serve import TOKENS_VARIABLE, ApiServer, load_tokens
from freshq.feeds.http_api import MAX_BODY_BYTES, MAX_WAIT_SECONDS
from freshq.model.telemetry import everywhere
from freshq.telemetry import Prometheus
from freshq.testing import FaultyStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.programs import python
from tests.support.worker_threads import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples/http"
TOKENS = ["the-token-of-this-test", "the-token-after-the-rotation"]
TASKS = 2_000
REQUIRED = "FRESHQ_REQUIRE_PRODUCERS"


@contextmanager
def served(queue: Queue, **options: Any) -> Iterator[httpx.Client]:
    """Serve a queue from a thread of this process."""
    server = ApiServer(queue, options.pop("host", "127.0.0.1"), 0, **options)
    thread = threading.Thread(target=server.serve_here)
    thread.start()
    try:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)


class TestAccess:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104 - the subject
    def test_other_machines_need_tokens(self, host: str) -> None:
        with pytest.raises(ValueError, match=r"^host: .*--token-file FILE or set FRESHQ_SERVE_TOKENS"):
            ApiServer(Queue.memory(), host, 0)

    def test_with_tokens_any_address_is_served(self) -> None:
        with served(Queue.memory(), host="0.0.0.0", tokens=TOKENS) as client:  # noqa: S104 - the subject
            for token in TOKENS:
                headers = {"Authorization": f"Bearer {token}", "Host": "queue.example"}
                assert client.get("/v1/stats", headers=headers).status_code == 200
            refused = client.get("/v1/stats", headers={"Host": "queue.example"})
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert client.get("/healthz").json() == {"status": "ok"}

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Host": "evil.example"}, 421),
            ({"Host": "localhost.evil.example:80"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://["}, 403),
            ({"Host": "["}, 421),
            ({"Content-Type": "text/plain"}, 415),
            ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
            ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ],
    )
    def test_a_web_page_cannot_put(self, headers: dict[str, str], status: int) -> None:
        queue = Queue.memory()
        with served(queue) as client:
            for path in ("/v1/tasks", "/v1/batch", "/v1/cancel"):
                type_ = {"Content-Type": "application/json"}
                assert client.post(path, content=b"{}", headers=type_ | headers).status_code == status
            if status != 415:
                assert client.get("/v1/stats", headers=headers).status_code == status
        assert queue.stats().pending == 0

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
    def test_its_own_address_is_a_known_host_name(self, host: str) -> None:
        with served(Queue.memory(), host=host) as client:
            assert client.get("/v1/stats").status_code == 200

    def test_a_probe_of_http_1_0_needs_no_host_name(self) -> None:
        with (
            served(Queue.memory()) as client,
            socket.create_connection(
                (client.base_url.host, client.base_url.port or 0), timeout=PATIENCE_SECONDS
            ) as connection,
        ):
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")

    def test_tokens_come_from_a_file_or_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "tokens"
        file.write_text("\n".join([*TOKENS, "", ""]))
        monkeypatch.delenv(TOKENS_VARIABLE, raising=False)
        assert load_tokens(None) == []
        assert load_tokens(file) == TOKENS
        file.write_text("\r\n".join(TOKENS), encoding="utf-8-sig")
        assert load_tokens(file) == TOKENS
        file.write_text(TOKENS[0], encoding="utf-16")
        for unreadable in (file, tmp_path, tmp_path / "missing"):
            with pytest.raises(ValueError, match=r"^token_file: .*: cannot be read as UTF-8"):
                load_tokens(unreadable)
        monkeypatch.setenv(TOKENS_VARIABLE, " ".join(TOKENS))
        assert load_tokens(None) == TOKENS

    @pytest.mark.parametrize("text", ["", "\n\n", "hunter2", f"{TOKENS[0]}\nhunter2", "schlüssel-schlüssel"])
    def test_a_weak_token_is_refused_and_not_shown(self, text: str, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"^token_file: .*openssl rand -hex 24") as raised:
            load_tokens(file)
        assert not any(token in str(raised.value) for token in text.split())


class TestServer:
    def test_puts_are_counted_for_prometheus(self) -> None:
        queue = Queue.memory(name="counted")
        with everywhere(Prometheus()), served(queue, tokens=TOKENS) as client:
            assert client.get("/metrics").status_code == 401
            headers = {"Authorization": f"Bearer {TOKENS[0]}"}
            body = {"payload": 1, "kind": "mail"}
            assert client.post("/v1/tasks", json=body, headers=headers).status_code == 201
            answer = client.get("/metrics", headers=headers)
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert 'freshq_tasks_created_total{kind="mail",queue="counted"} 1.0' in answer.text

    def test_a_large_body_is_answered(self) -> None:
        with served(Queue.memory()) as client:
            headers = {"Content-Type": "application/json"}
            large = client.post("/v1/tasks", content=b" " * (3 * MAX_BODY_BYTES), headers=headers)
            chunks = (b" " * 100_000 for _ in range(60))
            streamed = client.post("/v1/tasks", content=chunks, headers=headers)
            assert (large.status_code, streamed.status_code) == (413, 413)
            assert client.post("/v1/tasks", json={"payload": 1}).status_code == 201

    def test_a_body_that_does_not_arrive_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serve_module, "BODY_SECONDS", 0.1)
        with (
            served(Queue.memory()) as client,
            socket.create_connection(
                (client.base_url.host, client.base_url.port or 0), timeout=PATIENCE_SECONDS
            ) as connection,
        ):
            head = "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")

    def test_a_body_or_a_wait_ends_before_a_stop_is_cut_short(self) -> None:
        assert max(serve_module.BODY_SECONDS, MAX_WAIT_SECONDS) < serve_module.END_SECONDS

    def test_the_body_of_a_stranger_is_not_awaited(self) -> None:
        with (
            served(Queue.memory(), tokens=TOKENS) as client,
            socket.create_connection(
                (client.base_url.host, client.base_url.port or 0), timeout=PATIENCE_SECONDS
            ) as connection,
        ):
            connection.sendall(
                b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 401")

    def test_nothing_is_put_for_a_caller_that_went_away_early(self) -> None:
        queue = Queue.memory()
        with served(queue) as client:
            with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
                head = (
                    "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    'Content-Length: 99\r\n\r\n{"payload": 1}'
                )
                connection.sendall(head.encode())
            assert client.post("/v1/tasks", json={"payload": 2}).status_code == 201
        assert [task.payload for task in queue.list()] == [2]

    def test_an_unexpected_error_is_500_and_logged(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = Queue.memory()
        with served(queue) as client:
            monkeypatch.setattr(type(queue), "stats", lambda *_args, **_more: 1 // 0)
            answer = client.get("/v1/stats")
            assert (answer.status_code, answer.json()["error"]) == (500, "InternalServerError")
            assert "ZeroDivisionError" not in answer.text
            assert client.get("/healthz").status_code == 200
        assert "ZeroDivisionError" in caplog.text

    def test_too_many_connections_are_told_when_to_come_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serve_module, "MAX_CONNECTIONS", 1)
        with served(Queue.memory()) as client:
            assert client.get("/healthz").status_code == 200
            # The first connection is still open.
            refused = httpx.get(client.base_url.join("/v1/stats"), timeout=PATIENCE_SECONDS)
            assert httpx.get(client.base_url.join("/healthz"), timeout=PATIENCE_SECONDS).status_code == 200
            assert (refused.status_code, refused.json()["error"]) == (503, "ServiceUnavailable")
            assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("1", "close")

    def test_waits_hold_no_thread(self) -> None:
        queue = Queue.memory()
        with served(queue) as client, closing(asyncio.new_event_loop()) as loop:

            async def wait_and_put() -> list[int]:
                async with httpx.AsyncClient(base_url=client.base_url, timeout=PATIENCE_SECONDS) as caller:
                    assert (await caller.post("/v1/tasks", json={"task_id": "a"})).status_code == 201
                    wait = "/v1/tasks?task_id=a&wait_seconds=20"
                    waits = [asyncio.ensure_future(caller.get(wait)) for _ in range(50)]
                    put = await caller.post("/v1/tasks", json={"payload": 1})
                    await caller.post("/v1/cancel", json={"task_id": "a"})
                    ended = [wait.json()["status"] for wait in await asyncio.gather(*waits)]
                    assert ended == ["CANCELLED"] * 50
                    return [put.status_code]

            assert loop.run_until_complete(wait_and_put()) == [201]

    def test_a_store_in_an_outage_is_503_until_it_is_back(self) -> None:
        store = FaultyStore()
        with served(store.queue()) as client:
            with store.down():
                answer = client.post("/v1/tasks", json={"payload": 1})
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert client.post("/v1/tasks", json={"payload": 1}).status_code == 201


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/tasks.db"
    with closing(Queue.sql(address)) as queue:
        queue.create_table()
    return address


@contextmanager
def command(
    address: str, port: int = 0, tokens: Iterable[str] = ()
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run `freshq serve`; yield its process and its address."""
    serving = subprocess.Popen(
        [sys.executable, "-m", "freshq", "serve", "--queue", address, "--port", str(port), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {TOKENS_VARIABLE: " ".join(tokens)},
    )
    try:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        yield serving, json.loads(line)["url"] if line else ""
    finally:
        serving.kill()
        serving.communicate()


def test_a_signal_ends_it_after_its_answers(address: str) -> None:
    with command(address) as (serving, url):
        post = partial(httpx.post, f"{url}/v1/tasks", timeout=PATIENCE_SECONDS)
        assert post(json={"task_id": "a"}).status_code == 201
        with closing(HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_SECONDS)) as waiting:
            waiting.request("GET", "/v1/tasks?task_id=a&wait_seconds=20")
            # The server has read that once it answers a later request.
            assert post(json={"payload": 2}).status_code == 201
            serving.send_signal(signal.SIGTERM)
            answer = waiting.getresponse()
            assert (answer.status, json.load(answer)["status"]) == (200, "PENDING")
        assert serving.wait(PATIENCE_SECONDS) == 0
        assert serving.stderr is not None
        assert serving.stderr.read() == ""


def test_it_refuses_a_queue_that_no_other_process_sees() -> None:
    done = python("-m", "freshq", "serve", "--queue", "memory://", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "memory:// is in one process" in done.stderr


def test_it_says_at_once_that_the_table_is_missing(tmp_path: Path) -> None:
    done = python("-m", "freshq", "serve", "--queue", f"sqlite:///{tmp_path}/none.db", check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1


# Schemathesis takes an unknown header for wrong, and expects the schema to say all that is wrong, such as an
# id of too many bytes.
NOT_CHECKED = "negative_data_rejection,positive_data_acceptance"


def test_no_request_of_schemathesis_fails(address: str, tmp_path: Path) -> None:
    # A wait for a task ends when the task goes stale.
    stale_soon = f"{address}?max_age_seconds=2&override=on"
    with command(stale_soon, tokens=TOKENS) as (_serving, url):
        done = subprocess.run(
            [
                *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}/openapi.json"),
                *("-H", f"Authorization: Bearer {TOKENS[0]}", "--seed", "1", "--max-examples", "10"),
                *("--phases", "coverage,fuzzing", "--no-shrink"),
                *("--exclude-checks", NOT_CHECKED),
                *("--request-timeout", str(PATIENCE_SECONDS), "--suppress-health-check", "all"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stdout
    assert "Operations:       6 selected / 6 total" in done.stdout


def producer_in_node(_tmp_path: Path) -> list[str]:
    return ["node", str(EXAMPLES / "producer.mjs")]


def producer_in_go(tmp_path: Path) -> list[str]:
    program = str(tmp_path / "producer")
    environment = os.environ | {"GOCACHE": str(tmp_path / "cache"), "GOPROXY": "off", "GO111MODULE": "off"}
    source = str(EXAMPLES / "producer.go")
    subprocess.run([shutil.which("go") or "go", "build", "-o", program, source], check=True, env=environment)
    return [program]


@pytest.fixture(scope="module", params=[producer_in_node, producer_in_go], ids=["node", "go"])
def producer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    name = request.param.__name__.removeprefix("producer_in_")
    if not shutil.which(name):
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{name} is missing")
        pytest.skip(f"needs {name}")
    make: Callable[[Path], list[str]] = request.param
    return make(tmp_path_factory.mktemp(name))


def test_producers_send_the_vectors(producer: list[str], address: str) -> None:
    with command(address, tokens=TOKENS) as (_serving, url):
        done = subprocess.run(
            [*producer, url, "compare", str(EXAMPLES / "vectors.json")],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"FRESHQ_TOKEN": TOKENS[0]},
        )
    # Node 18 warns on standard error that its fetch is new.
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def has_tasks(queue: Queue, number: int) -> bool:
    return queue.stats(approximate=True).pending >= number


def test_nothing_is_lost_or_double_while_the_server_is_killed(producer: list[str], address: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with closing(Queue.sql(address)) as queue:
        producing = subprocess.Popen(
            [*producer, f"http://127.0.0.1:{port}", "put", str(TASKS)], stdout=subprocess.PIPE, text=True
        )
        try:
            for killed_after in (200, 600, 1200, 1600):
                with command(address, port):  # killed when the block ends
                    wait_until(partial(has_tasks, queue, killed_after))
            with command(address, port):
                output, _ = producing.communicate(timeout=2 * PATIENCE_SECONDS)
        finally:
            producing.kill()
        assert producing.returncode == 0
        outcomes = json.loads(output)
        assert sum(outcomes.values()) == TASKS
        assert queue.stats().pending == TASKS
        tasks: list[Task] = []
        cursor: str | None = None
        while page := queue.list(limit=1000, cursor=cursor):
            tasks += page.tasks
            cursor = page.cursor
            if cursor is None:
                break
        assert {(task.task_id, task.payload["number"]) for task in tasks} == {
            (f"order-{number}", number) for number in range(TASKS)
        }
