"""The commands of docs/governance.md, word for word on the emulator, except those that it calls not tried."""

import json
import re
import shlex
from typing import Any, Final

import pytest

from tests.e2e.conftest import Deployment
from tests.support.aws_cli import call
from tests.support.functions import PROJECT
from tests.support.snippets import snippets

pytestmark = pytest.mark.timeout(600)
PAGE: Final = PROJECT / "docs" / "governance.md"
ACCOUNT: Final = "000000000000"


def commands() -> list[list[str]]:
    """Return the words of each command that the page says was tried."""
    found = [snippet for snippet in snippets(PAGE) if snippet.language == "sh"]
    tried = [snippet for snippet in found if snippet.not_run != "not tried"]
    assert 0 < len(tried) < len(found)
    return [shlex.split(line) for snippet in tried for line in snippet.code.splitlines()]


def test_the_commands_are_accepted_and_do_what_the_page_says(left_alone: Deployment) -> None:
    key = left_alone.client("kms").create_key()["KeyMetadata"]["KeyId"]
    table = left_alone.client("dynamodb").describe_table(TableName=left_alone.outputs["QueueTableName"])
    names = {
        "STACK": left_alone.stack,
        "KEY": key,
        "ACCOUNT": ACCOUNT,
        "REGION2": "eu-west-1",
        "TABLE_ARN": table["Table"]["TableArn"],
        "OWNER": "owner",
        "REPOSITORY": "repository",
    }
    answers: dict[str, Any] = {}
    for program, service, operation, *words in commands():
        assert program == "aws"
        named = [
            re.sub(r"\b[A-Z][A-Z_]+2?\b", lambda word: names.get(word[0], word[0]), text) for text in words
        ]
        if "EncryptionKey" in named:  # this stack has none
            named[named.index("EncryptionKey")] = "QueueTable"
        answers[operation] = call(left_alone.client(service), operation, *named)
        if operation == "create-backup-plan":
            names["PLAN"] = answers[operation]["BackupPlanId"]
    assert answers["get-key-rotation-status"]["KeyRotationEnabled"] is True
    assert answers["get-key-rotation-status"]["RotationPeriodInDays"] == 180
    found = answers["describe-stack-resource"]["StackResourceDetail"]["PhysicalResourceId"]
    assert found == left_alone.outputs["QueueTableName"]
    backup = left_alone.client("backup")
    plan = backup.get_backup_plan(BackupPlanId=names["PLAN"])["BackupPlan"]
    assert plan["Rules"][0]["Lifecycle"]["DeleteAfterDays"] == 90
    role = left_alone.client("iam").get_role(RoleName="freshq-deploy")["Role"]
    trusted = json.dumps(role["AssumeRolePolicyDocument"])
    assert answers["create-open-id-connect-provider"]["OpenIDConnectProviderArn"] in trusted
    assert "repo:owner/repository:environment:prod" in trusted
