"""The tutorial, step by step, as a reader follows it."""

import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from types_boto3_dynamodb import DynamoDBClient

from tests.support.functions import PROJECT
from tests.support.snippets import Reader, snippets

STALE_SECONDS = 0.5


@pytest.mark.timeout(600)  # two dozen processes, one after the other, on a machine that may be busy
def test_the_tutorial(tmp_path: Path, postgres_engine: sa.Engine, dynamodb_local: DynamoDBClient) -> None:
    url = postgres_engine.url.render_as_string(hide_password=False)
    reader = Reader(
        tmp_path,
        environment={
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_local.meta.endpoint_url,
            "AWS_DEFAULT_REGION": dynamodb_local.meta.region_name,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
        },
        stand_ins={"postgresql+psycopg://you@localhost/quotes": url},
    )
    try:
        reader.follow(snippets(PROJECT / "docs" / "tutorial.md"))
    finally:
        if "Quotes" in dynamodb_local.list_tables()["TableNames"]:
            dynamodb_local.delete_table(TableName="Quotes")
    waits = re.findall(r"within ([\d.]+) s", reader.printed["python overload.py"])
    newest_first, oldest_first = map(float, waits)
    # The page's claim about them.
    assert newest_first < STALE_SECONDS / 2 < oldest_first
