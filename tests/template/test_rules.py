"""What the template refuses before anything is made, and that nothing is protected by accident."""

import json
import re
import tomllib
from typing import Any

import pytest
from samcli.cli.types import CfnParameterOverridesType

from tests.template.test_template import PROJECT, source


def evaluated(expression: Any, parameters: dict[str, str]) -> Any:
    """Return the value of a rule's expression, as CloudFormation has it."""
    if not isinstance(expression, dict):
        return expression
    ((function, arguments),) = expression.items()
    if function == "Ref":
        return parameters[arguments]
    values = [evaluated(argument, parameters) for argument in arguments]
    if function == "Fn::Equals":
        return values[0] == values[1]
    if function == "Fn::Not":
        return not values[0]
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


ATTACHED = {"AttachTable": "Shipments", "AttachKey": "id", "AttachStreamArn": "arn:"}


def test_the_defaults_are_accepted() -> None:
    assert refusals() == []
    assert refusals(**ATTACHED) == []
    assert refusals(MatchStreamArn="arn:", Archive="on") == []
    assert refusals(SnapStart="on") == []
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
        ({"SnapStart": "on", "Runtime": "python3.11"}, "SnapStart: "),
    ],
)
def test_what_cannot_work_is_refused_at_deploy(parameters: dict[str, str], message: str) -> None:
    (refusal,) = refusals(**parameters)
    assert refusal.startswith(message)


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
    """The command line's overrides replace those of samconfig.toml."""
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
