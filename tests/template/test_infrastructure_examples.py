"""The examples for the CDK and Terraform make the table that freshq makes, and name what the template has."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hcl2
import pytest
from samtranslator.yaml_helper import yaml_parse

from freshq.stores.dynamodb.schema import table_definition

REPOSITORY = Path(__file__).parents[2]
CDK = REPOSITORY / "examples" / "cdk"
TERRAFORM = REPOSITORY / "examples" / "terraform"
WANTED = table_definition("tasks")
TEMPLATE = yaml_parse((REPOSITORY / "template.yaml").read_text("utf-8"))
INSTALL_SECONDS = 300


def check_parameters(given: Mapping[str, str]) -> None:
    """Check the parameters of a stack: each exists with this value, and those without a default are given."""
    wanted = TEMPLATE["Parameters"]
    assert given.items()
    assert all(value in wanted[name].get("AllowedValues", [value]) for name, value in given.items())
    assert {name for name, each in wanted.items() if "Default" not in each} <= given.keys()


@pytest.fixture(scope="module")
def synthesized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the templates that the CDK makes."""
    if shutil.which("npm") is None:
        assert "FRESHQ_REQUIRE_DYNAMODB_LOCAL" not in os.environ
        pytest.skip("npm is missing")
    folder = tmp_path_factory.mktemp("cdk") / "app"
    shutil.copytree(CDK, folder, ignore=shutil.ignore_patterns("node_modules", "cdk.out"))
    shutil.copy(REPOSITORY / "template.yaml", folder / "packaged.yaml")
    environment = {**os.environ, "CDK_OUTDIR": str(folder / "out")}
    for command in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["node", "app.js"]):
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def test_the_cdk_makes_the_table_of_a_queue(synthesized: Path) -> None:
    resources = json.loads((synthesized / "FreshqQueue.template.json").read_text("utf-8"))["Resources"]
    (table,) = resources.values()
    assert (table["Type"], table["DeletionPolicy"]) == ("AWS::DynamoDB::Table", "Retain")
    made = table["Properties"]
    for name in ("BillingMode", "AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes"):
        assert made[name] == WANTED[name], name
    assert made["StreamSpecification"]["StreamViewType"] == WANTED["StreamSpecification"]["StreamViewType"]
    assert made["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert made["SSESpecification"]["SSEEnabled"]


def test_the_cdk_deploys_the_packaged_template(synthesized: Path) -> None:
    template = json.loads((synthesized / "FreshqStack.template.json").read_text("utf-8"))
    (stack,) = template["Resources"].values()
    assert stack["Type"] == "AWS::CloudFormation::Stack"
    check_parameters(stack["Properties"]["Parameters"])
    (asset,) = synthesized.glob("asset.*.yaml")
    assert asset.read_text("utf-8") == (REPOSITORY / "template.yaml").read_text("utf-8")
    assert asset.stem.removeprefix("asset.") in json.dumps(stack["Properties"]["TemplateURL"])
    (output,) = template["Outputs"].values()
    _freshq, name = output["Value"]["Fn::GetAtt"]
    assert name.removeprefix("Outputs.") in TEMPLATE["Outputs"]


def terraform(file: str, kind: str) -> dict[str, Any]:
    """Return the only resource of a kind in a file, with its strings as Terraform reads them."""
    parsed = hcl2.loads((TERRAFORM / file).read_text("utf-8"))
    found = [
        each for block in parsed["resource"] for type_, each in block.items() if type_.strip('"') == kind
    ]
    ((resource,),) = (each.values() for each in found)
    plain: dict[str, Any] = json.loads(json.dumps(resource), object_hook=_plain)
    return plain


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return an object without the quotes that the parser leaves around names and strings."""
    return {name.strip('"'): _unquoted(value) for name, value in values.items()}


def _unquoted(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_unquoted, value)]
    return value.strip('"') if isinstance(value, str) else value


def index_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index as DynamoDB describes it."""
    projection = {"ProjectionType": block["projection_type"]}
    projection |= {"NonKeyAttributes": block["non_key_attributes"]} if "non_key_attributes" in block else {}
    keys = [
        {"AttributeName": block["hash_key"], "KeyType": "HASH"},
        {"AttributeName": block["range_key"], "KeyType": "RANGE"},
    ]
    return {"IndexName": block["name"], "KeySchema": keys, "Projection": projection}


def test_terraform_makes_the_table_of_a_queue() -> None:
    table = terraform("queue.tf", "aws_dynamodb_table")
    attributes = [
        {"AttributeName": each["name"], "AttributeType": each["type"]} for each in table["attribute"]
    ]
    assert attributes == WANTED["AttributeDefinitions"]
    assert [{"AttributeName": table["hash_key"], "KeyType": "HASH"}] == WANTED["KeySchema"]
    assert [*map(index_of, table["global_secondary_index"])] == WANTED["GlobalSecondaryIndexes"]
    assert table["billing_mode"] == WANTED["BillingMode"]
    assert table["stream_enabled"]
    assert table["stream_view_type"] == WANTED["StreamSpecification"]["StreamViewType"]
    (ttl,) = table["ttl"]
    assert (ttl["attribute_name"], ttl["enabled"]) == ("ttl", True)
    assert table["lifecycle"][0]["prevent_destroy"]


def test_terraform_deploys_the_packaged_template() -> None:
    stack = terraform("stack.tf", "aws_cloudformation_stack")
    check_parameters(stack["parameters"])
    assert stack["capabilities"] == ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
    for capability in stack["capabilities"]:
        assert capability in (REPOSITORY / "samconfig.toml").read_text("utf-8")
    text = (TERRAFORM / "stack.tf").read_text("utf-8")
    assert 'outputs["QueueTableName"]' in text
    assert "QueueTableName" in TEMPLATE["Outputs"]


def test_terraform_finds_the_files_well_formed() -> None:
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("terraform is missing, and no registry of packages has it")
    done = subprocess.run(
        [program, "fmt", "-check", "-diff"], cwd=TERRAFORM, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
