"""Calls the HTTP interface of a stack, with requests that are signed by the credentials of AWS.

    HTTP_API_URL=... AWS_REGION=... python signed.py POST /v1/tasks '{"task_id": "order-7", "payload": 1}'

HTTP_API_URL is the output HttpApiUrl of the stack, AWS_REGION its region. It needs only botocore.
"""

import os
import sys
import urllib.error
import urllib.request

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import get_session


def call(method: str, path: str, body: str = "") -> tuple[int, str]:
    """Return the status and the body of a response."""
    unsigned = AWSRequest(
        method, os.environ["HTTP_API_URL"] + path, {"Content-Type": "application/json"}, body
    )
    credentials = get_session().get_credentials()
    if credentials is None:
        sys.exit("botocore finds no credentials of AWS: set AWS_PROFILE, or AWS_ACCESS_KEY_ID")
    SigV4Auth(credentials, "execute-api", os.environ["AWS_REGION"]).add_auth(unsigned)
    request = unsigned.prepare()
    sent = urllib.request.Request(  # noqa: S310 - the address is the stack's
        request.url, body.encode() or None, dict(request.headers), method=method
    )
    try:
        with urllib.request.urlopen(sent, timeout=60) as response:  # noqa: S310 - as above
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


if __name__ == "__main__":
    print(*call(*sys.argv[1:]))
