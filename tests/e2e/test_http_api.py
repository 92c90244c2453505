"""The HTTP interface of the stack, through the emulator's API Gateway: signed requests, tokens of Cognito.

The emulator checks who signs and what that user may do, but not the signature. It lets requests through whose
Authorization is no signature: the function refuses those.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from local.emulator import PROJECT, REGION

from tests.e2e.conftest import Deployment, wait_until
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.timeout(600)
EXAMPLES: Final = PROJECT / "examples" / "http"
PASSWORD: Final = "Correct-horse-7"
# The test's own credentials, which may do everything.
OF_ACCOUNT: Final = ("test", "test")


def url_of(application: Deployment) -> str:
    """Return the address of the interface by the emulator's path, as its host name cannot be resolved."""
    host = urlsplit(application.outputs["HttpApiUrl"]).hostname or ""
    return f"{application.emulator.endpoint_url}/_aws/execute-api/{host.partition('.')[0]}/$default"


def signed(
    application: Deployment, method: str, path: str, body: Any = None, keys: tuple[str, str] = OF_ACCOUNT
) -> tuple[int, Any]:
    """Return the status and the body of the response to a request that the example sends."""
    given = [] if body is None else [json.dumps(body)]
    variables = {
        "HTTP_API_URL": url_of(application),
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": keys[0],
        "AWS_SECRET_ACCESS_KEY": keys[1],
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "signed.py"), method, path, *given],
        capture_output=True,
        text=True,
        check=True,
        env=application.emulator.environment | variables,
    )
    status, _, text = done.stdout.partition(" ")
    return int(status), json.loads(text)


def user_with(application: Deployment, *statements: dict[str, Any]) -> tuple[str, str]:
    """Return the keys of a new user who may do this."""
    iam, name = application.client("iam"), uuid.uuid4().hex
    iam.create_user(UserName=name)
    document = {"Version": "2012-10-17", "Statement": statements}
    if statements:
        iam.put_user_policy(UserName=name, PolicyName="http-api", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


def test_a_signed_request_puts_a_task_and_waits_for_its_result(deployed: Callable[..., Deployment]) -> None:
    application = deployed(HttpApi="on")
    # The start of the function may take long here, and nothing repeats requests.
    wait_until(lambda: signed(application, "GET", "/v1/stats")[0] == 200)
    task_id = "order 7/é+%"
    encoded = "order%207%2F%C3%A9%2B%25"
    assert signed(application, "POST", "/v1/tasks", {"task_id": task_id, "payload": 1}) == (
        201,
        {"task_id": task_id, "outcome": "CREATED"},
    )
    path = f"/v1/tasks?task_id={encoded}&wait_seconds=20"
    status, task = wait_until(lambda: ended(signed(application, "GET", path)))
    assert (status, task["task_id"], task["status"]) == (200, task_id, "SUCCESS")
    lines = application.log("HttpApi")
    assert [line["task_id"] for line in lines if line["message"] == "task put"] == [task_id]
    statuses = {line["status"] for line in lines if line["message"] == "request answered"}
    assert statuses >= {200, 201}


def ended(response: tuple[int, Any]) -> tuple[int, Any] | None:
    """Return a response unless it has a task that still waits or runs."""
    return None if response[1].get("status") in ("PENDING", "TAKEN") else response


def test_only_callers_whom_iam_allows_are_served(deployed: Callable[..., Deployment]) -> None:
    application = deployed(HttpApi="on")
    wait_until(lambda: signed(application, "GET", "/v1/stats")[0] == 200)
    allowed = {
        "Effect": "Allow",
        "Action": "execute-api:Invoke",
        "Resource": application.outputs["HttpApiArn"],
    }
    assert signed(application, "GET", "/v1/stats", keys=user_with(application, allowed))[0] == 200
    assert signed(application, "GET", "/v1/stats", keys=user_with(application))[0] == 403
    assert signed(application, "GET", "/v1/stats", keys=("AKIANOBODY", "none"))[0] == 403
    url, task = url_of(application), {"task_id": "nobody's"}
    for path in ("/v1/stats", "/openapi.json", "/healthz", "/none"):
        assert httpx.get(url + path, timeout=PATIENCE_SECONDS).status_code == 403
    assert httpx.post(f"{url}/v1/tasks", json=task, timeout=PATIENCE_SECONDS).status_code == 403
    headers = {"Authorization": "Bearer of-none"}
    unchecked = httpx.post(f"{url}/v1/tasks", json=task, headers=headers, timeout=PATIENCE_SECONDS)
    assert unchecked.status_code == 502
    assert application.queue.get("nobody's") is None


def tokens_of(application: Deployment) -> tuple[str, str, str]:
    """Return the issuer of a pool of users, and the client ids of a shop and of somebody else."""
    cognito = application.client("cognito-idp")
    pool = cognito.create_user_pool(PoolName=uuid.uuid4().hex)["UserPool"]["Id"]
    clients = [
        cognito.create_user_pool_client(
            UserPoolId=pool, ClientName=name, ExplicitAuthFlows=["ALLOW_USER_PASSWORD_AUTH"]
        )["UserPoolClient"]["ClientId"]
        for name in ("shop", "other")
    ]
    cognito.admin_create_user(UserPoolId=pool, Username="ada", MessageAction="SUPPRESS")
    cognito.admin_set_user_password(UserPoolId=pool, Username="ada", Password=PASSWORD, Permanent=True)
    return f"https://cognito-idp.{REGION}.amazonaws.com/{pool}", clients[0], clients[1]


def token_for(application: Deployment, client: str) -> str:
    """Return a token for an audience."""
    answer = application.client("cognito-idp").initiate_auth(
        ClientId=client,
        AuthFlow="USER_PASSWORD_AUTH",
        AuthParameters={"USERNAME": "ada", "PASSWORD": PASSWORD},
    )
    return str(answer["AuthenticationResult"]["IdToken"])


def test_a_producer_with_a_token_gets_the_answers_of_the_vectors(
    left_alone: Deployment, deployed: Callable[..., Deployment]
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    issuer, shop, other = tokens_of(left_alone)
    application = deployed(HttpApi="on", JwtIssuer=issuer, JwtAudiences=shop)
    application.queue.pause()  # the vectors expect tasks that wait
    url, token = url_of(application), token_for(application, shop)

    def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{url}/v1/stats", headers=headers, timeout=PATIENCE_SECONDS).status_code

    wait_until(lambda: status(token) == 200)
    done = subprocess.run(
        [node, str(EXAMPLES / "producer.mjs"), url, "compare", str(EXAMPLES / "vectors.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"FRESHQ_TOKEN": token},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

    head, claims, signature = token.split(".")
    assert status(f"{head}.{claims}.{signature[::-1]}") == 401
    assert status(token_for(application, other)) == 401
    assert httpx.get(f"{url}/v1/stats", timeout=PATIENCE_SECONDS).status_code == 401
    assert signed(application, "GET", "/v1/stats")[0] == 401
