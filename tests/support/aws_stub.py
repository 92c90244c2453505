"""SNS, SSM and Firehose as far as the functions call them, on a free port of 127.0.0.1; they can fail."""

import base64
import json
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl

PUBLISHED = (
    '<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">'
    "<PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>"
)

# Faults of an operation: an answer with an error, or none.
THROTTLED: Final = "throttled"
BROKEN: Final = "broken"
SILENT: Final = "silent"
FOR_EVER: Final = 1_000_000


@dataclass
class AwsStub:
    """A server for a `with` block, which keeps its requests.

    Attributes:
        kill_switch: Value of every SSM parameter.
        published: Topic and message of each SNS publish.
        delivered: Data of each Firehose record.
        requests: Requests of each operation, including those that failed.
        rejected: Firehose records of the next calls to reject, one number for each call.
    """

    kill_switch: str = "run"
    published: list[tuple[str, str]] = field(default_factory=list)
    delivered: list[bytes] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    rejected: list[int] = field(default_factory=list)
    _faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _ended: threading.Event = field(default_factory=threading.Event)
    _server: ThreadingHTTPServer | None = None

    @property
    def endpoint_url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, operation: str, fault: str, times: int = FOR_EVER) -> None:
        """Make the next requests of an operation fail."""
        self._faults[operation] = [fault] * times

    def heal(self) -> None:
        """Stop failing requests."""
        self._faults.clear()

    def respond(self, target: str, body: bytes) -> tuple[int, str] | None:
        """Return the status and the answer of a request; None for no answer."""
        operation = target.rpartition(".")[2] or dict(parse_qsl(body.decode()))["Action"]
        self.requests[operation] += 1
        if not self._faults[operation]:
            return 200, self.answer(operation, body)
        fault = self._faults[operation].pop()
        if fault == SILENT:
            self._ended.wait()
            return None
        status, code = (400, "ThrottlingException") if fault == THROTTLED else (500, "InternalFailure")
        if operation == "Publish":
            return status, f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>"
        return status, json.dumps({"__type": code, "message": "by the test"})

    def answer(self, operation: str, body: bytes) -> str:
        """Answer a request that does not fail."""
        if operation == "GetParameter":
            return json.dumps({"Parameter": {"Name": json.loads(body)["Name"], "Value": self.kill_switch}})
        if operation == "PutRecordBatch":
            records = json.loads(body)["Records"]
            bad = self.rejected.pop(0) if self.rejected else 0
            self.delivered += [base64.b64decode(record["Data"]) for record in records[bad:]]
            answers = [{"ErrorCode": "ServiceUnavailableException"}] * bad
            answers += [{"RecordId": "1"}] * (len(records) - bad)
            return json.dumps({"FailedPutCount": bad, "RequestResponses": answers})
        fields = dict(parse_qsl(body.decode()))
        assert fields["Action"] == "Publish", fields
        self.published.append((fields["TopicArn"], fields["Message"]))
        return PUBLISHED

    def __enter__(self) -> Self:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                response = stub.respond(self.headers.get("X-Amz-Target", ""), body)
                if response is None:
                    self.close_connection = True
                    return
                status, answer = response[0], response[1].encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
