"""Variables of a runner cannot redirect freshq: the template refuses most, the first call the rest."""

import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

import pytest
from local.servers import HOST

from freshq.aws.environment import dynamodb_client
from tests.support.functions import load_event
from tests.support.readings import known
from tests.template.test_template import source
from tests.unit.conftest import Application

REFUSED_NAMES: Final = [
    "AWS_REGION",
    "AWS_ENDPOINT_URL_DYNAMODB",
    "AWS_ACCESS_KEY_ID",
    "AWS_MAX_ATTEMPTS",
    "POWERTOOLS_METRICS_NAMESPACE",
    "FRESHQ_TABLE",
    "FRESHQ_RUNNER_ENVIRONMENT",
    "LAMBDA_TASK_ROOT",
    "_X_AMZN_TRACE_ID",
    "_HANDLER",
    "",
    "A=B",
    "A\0B",
]
ACCEPTED: Final = [
    {},
    {"BUCKET": "my-bucket", "LOG_LEVEL": "INFO", "a.b-c": ""},
    {"FRESHQ_DEMO_CAPACITY": "3"},
    {"MY_AWS_REGION": "eu-west-1", "NAME": "AWS_REGION", "EMPTY": ""},
    {"CONFIG": json.dumps({"AWS_REGION": "x", "": 1, "_a": 2}), "TEXT": 'a,"AWS_REGION": {"_b": "\\'},
    {"NAME": "Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}"},
]


@pytest.mark.filterwarnings("ignore:No application metrics to publish")
@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_a_runner_cannot_redirect_freshq(application: Application, name: str) -> None:
    application.set("FRESHQ_RUNNER_ENVIRONMENT", json.dumps({"FINE": "yes", name: "s3cr3t"}))
    application.queue.put(1, task_id="a")
    before = dict(os.environ)
    with pytest.raises(ValueError, match="parameter RunnerEnvironment") as refused:
        application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    assert "s3cr3t" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert dict(os.environ) == before
    assert known(application.queue, "a").attempts == 0


@pytest.mark.parametrize("variables", [*ACCEPTED, *({name: "x"} for name in REFUSED_NAMES)])
def test_the_template_refuses_the_same_names(variables: dict[str, str]) -> None:
    parameter = source()["Parameters"]["RunnerEnvironment"]
    accepted = variables in ACCEPTED
    for indent in (None, 2):
        text = json.dumps(variables, indent=indent)
        if "\\u0000" not in text and "=" not in text:  # found at the first call
            assert bool(re.fullmatch(parameter["AllowedPattern"], text)) is accepted, text


def test_the_template_counts_bytes() -> None:
    pattern = source()["Parameters"]["RunnerEnvironment"]["AllowedPattern"]
    text = json.dumps({"NAME": "\N{PILE OF POO}"}, ensure_ascii=False)
    assert not re.fullmatch(pattern, text)
    assert re.fullmatch(pattern, json.dumps({"NAME": "\N{PILE OF POO}"}))
    assert not re.fullmatch(pattern, "[]")


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"), [("", False), (HOST, True), ("*", True), ("other", False)]
)
def test_a_proxy_of_the_runner_is_the_proxy_of_freshq(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, is_direct: bool
) -> None:
    """NO_PROXY keeps the calls of AWS away from it. A proxy is asked for whole addresses."""
    asked: list[str] = []

    class Both(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.requestline.split()[1])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"TableNames": []}')

    with HTTPServer((HOST, 0), Both) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        address = f"http://{HOST}:{server.server_port}"
        variables = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "NO_PROXY": no_proxy}
        for name, value in ({"AWS_ENDPOINT_URL": address, "AWS_REGION": "eu-west-1"} | variables).items():
            monkeypatch.setenv(name, value)
        assert dynamodb_client().list_tables()["TableNames"] == []
        server.shutdown()
        thread.join()
    assert asked == ["/" if is_direct else f"{address}/"]
