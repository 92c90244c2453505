"""Values that the template refuses before anything is made; nothing is protected by accident."""

import json
import re
import tomllib
from typing import Any

import pytest
from samcli.cli.types import CfnParameterOverridesType

from freshq.aws.worker_pass import claiming_seconds
from freshq.model.pass_options import PassOptions
from tests.template.test_template import PROJECT, source


def evaluated(expression: Any, parameters: dict[str, str]) -> Any:
    """Return the value of a rule's expression, as CloudFormation has it."""
    if not isinstance(expression, dict):
        return expression
    ((function, arguments),) = expression.items()
    if function == "Ref":
        is_list = source()["Parameters"][arguments]["Type"] == "CommaDelimitedList"
        return parameters[arguments].split(",") if is_list else parameters[arguments]
    values = [evaluated(argument, parameters) for argument in arguments]
    if function == "Fn::Equals":
        return values[0] == values[1]
    if function == "Fn::Not":
        return not values[0]
    if function == "Fn::EachMemberEquals":
        return all(member == values[1] for member in values[0])
    pytest.fail(f"a rule uses {function}")


def refusals(**given: str) -> list[str]:
    """Return why a deployment with some parameters would be refused."""
    defaults = {name: str(entry.get("Default", "")) for name, entry in source()["Parameters"].items()}
    parameters = defaults | {"Stage": "dev"} | given
    return [
        assertion["AssertDescription"]
        for rule in source()["Rules"].values()
        if evaluated(rule.get("RuleCondition", True), parameters)
        for assertion in rule["Assertions"]
        if not evaluated(assertion["Assert"], parameters)
    ]


STREAM = "arn:aws:dynamodb:eu-west-1:123456789012:table/Shipments/stream/2026-01-01T00:00:00.000"
ATTACHED = {"AttachTable": "Shipments", "AttachKey": "id", "AttachStreamArn": "arn:"}


def test_the_defaults_are_accepted() -> None:
    assert refusals() == []
    assert refusals(**ATTACHED) == []
    assert refusals(MatchStreamArn="arn:", Archive="on") == []
    assert refusals(SnapStart="on") == []
    assert refusals(HttpApi="on") == []
    assert refusals(HttpApi="on", JwtIssuer="https://issuer", JwtAudiences="shop,office") == []
    assert refusals(VpcSubnetIds="subnet-1,subnet-2", VpcSecurityGroupIds="sg-1") == []
    assert refusals(Stage="prod", AlarmTopicArn="arn:aws:sns:eu-west-1:123456789012:alarms") == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"Stage": "prod"}, "AlarmTopicArn: "),
        ({"MonthlyBudgetUsd": "10"}, "MonthlyBudgetUsd: "),
        ({"AttachTable": "Shipments", "AttachStreamArn": "arn:"}, "AttachKey: "),
        ({"AttachTable": "Shipments", "AttachKey": "id"}, "AttachStreamArn: "),
        ({"AttachKey": "id"}, "AttachTable: "),
        ({"AttachRangeKey": "day"}, "AttachTable: "),
        ({"AttachStreamArn": "arn:"}, "AttachTable: "),
        (ATTACHED | {"MaxUnitsPerSecond": "10"}, "MaxUnitsPerSecond: "),
        (ATTACHED | {"SyntheticTask": "on"}, "SyntheticTask: "),
        ({"MatchStreamArn": "arn:"}, "Archive: "),
        ({"JwtIssuer": "https://issuer", "HttpApi": "on"}, "JwtAudiences: "),
        ({"JwtIssuer": "https://issuer", "JwtAudiences": "shop"}, "HttpApi: "),
        ({"JwtAudiences": "shop", "HttpApi": "on"}, "JwtIssuer: "),
        ({"SnapStart": "on", "Runtime": "python3.11"}, "SnapStart: "),
        ({"VpcSubnetIds": "subnet-1,subnet-2"}, "VpcSecurityGroupIds: "),
        ({"VpcSecurityGroupIds": "sg-1"}, "VpcSubnetIds: "),
        ({"DeploymentType": "Canary10Percent5Minutes", "ReservedConcurrency": "1"}, "ReservedConcurrency: "),
    ],
)
def test_what_cannot_work_is_refused_at_deploy(parameters: dict[str, str], message: str) -> None:
    (refusal,) = refusals(**parameters)
    assert refusal.startswith(message)


def test_every_timeout_leaves_a_pass_time_to_claim() -> None:
    shortest = source()["Parameters"]["TimeoutSeconds"]["MinValue"]
    assert claiming_seconds(PassOptions(), shortest - 1) > 5, "a second for the start of the function"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "AlarmTopicArn",
            "arn:aws-cn:sns:cn-north-1:123456789012:alarms",
            "arn:aws:sqs:eu-west-1:123456789012:q",
        ),
        ("AttachStreamArn", STREAM, "arn:aws:dynamodb:eu-west-1:123456789012:table/Shipments"),
        ("MatchStreamArn", STREAM, "Shipments"),
        ("AttachTable", "Shipments-2", "arn:aws:dynamodb:eu-west-1:123456789012:table/Shipments"),
        ("PermissionsBoundaryArn", "arn:aws:iam::123456789012:policy/team/limit", "limit"),
        ("RunnerPolicyArns", "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess", "AmazonS3ReadOnlyAccess"),
        ("JwtIssuer", "https://issuer.example.org/", "http://issuer.example.org"),
        ("Runner", "orders.runner:run", "orders..runner:run"),
        ("Runner", "quotes:run", "quotes.py:run:now"),
    ],
)
def test_a_value_of_another_form_is_refused_by_name(name: str, good: str, bad: str) -> None:
    parameter = source()["Parameters"][name]
    for value, accepted in [(good, True), (bad, False), (str(parameter["Default"]), True)]:
        assert bool(re.fullmatch(parameter["AllowedPattern"], value)) is accepted, value


def test_a_deployment_that_forgets_the_stage_is_refused() -> None:
    assert "Default" not in source()["Parameters"]["Stage"]


def overrides(environment: str) -> dict[str, str]:
    config = tomllib.loads((PROJECT / "samconfig.toml").read_text("utf-8"))
    text = config[environment]["deploy"]["parameters"]["parameter_overrides"]
    parsed: dict[str, str] = CfnParameterOverridesType().convert((text,), None, None)
    return parsed


@pytest.mark.parametrize(
    ("environment", "stage"), [("default", "dev"), ("local", "local"), ("dev", "dev"), ("prod", "prod")]
)
def test_every_environment_names_its_stage_and_parameters_that_exist(environment: str, stage: str) -> None:
    given = overrides(environment)
    assert given["Stage"] == stage
    assert given.keys() <= source()["Parameters"].keys()
    assert given.get("LogLevel", "INFO") == "INFO"


def test_the_alarm_topic_of_prod_has_its_place_in_the_file() -> None:
    assert overrides("prod")["AlarmTopicArn"] == ""


def test_every_shown_override_names_the_stage() -> None:
    """Overrides of the command line replace the overrides of samconfig.toml."""
    documents = [PROJECT / "README.md", PROJECT / "samconfig.toml", *(PROJECT / "docs").glob("*.md")]
    shown = [
        line
        for document in documents
        for line in re.findall(
            r"^ *sam deploy .*--parameter-overrides .*$", document.read_text("utf-8"), re.MULTILINE
        )
    ]
    assert len(shown) >= 3
    for line in shown:
        assert "Stage=" in line, line


def test_the_stack_policy_refuses_updates_of_what_production_keeps() -> None:
    """Otherwise Stage=dev would take the protection from a table with one parameter."""
    policy = json.loads((PROJECT / "stack-policy.json").read_text("utf-8"))
    allow, deny = policy["Statement"]
    assert (allow["Effect"], allow["Resource"]) == ("Allow", "*")
    kept = {
        f"LogicalResourceId/{name}"
        for name, resource in source()["Resources"].items()
        if resource.get("DeletionPolicy") == {"Fn::If": ["IsProd", "Retain", "Delete"]}
    }
    assert len(kept) == 3
    assert (deny["Effect"], deny["Action"], set(deny["Resource"])) == ("Deny", "Update:*", kept)
