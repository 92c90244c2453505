"""The template deploys with the longest value of every parameter."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.template.test_template import FUNCTIONS, of_type, source, translated

# Lambda's limits: letters of a version's description, bytes of a function's environment.
MOST_DESCRIPTION = 256
MOST_ENVIRONMENT = 4096
STACK_NAME = 128
# A topic's ARN with its longest name, in the partition with the longest one.
ARN = len("arn:aws-us-gov:sns:us-gov-west-1:123456789012:") + 256
# Limits of a generated name, which has the stack's name, the logical id and a random part.
NAME = STACK_NAME + 64
VERSION_NUMBER = len("999999")
PSEUDO = {"AWS::StackName": STACK_NAME, "AWS::Region": 20}


def longest(value: Any) -> int:
    """Return the length of the longest text that a value of the template may have.

    A resource counts as an ARN, or as a generated name if it is a parameter of SSM or a table.
    """
    if isinstance(value, list):
        return sum(map(longest, value))
    if not isinstance(value, dict):
        return len(str(value))
    ((function, of),) = value.items()
    if function == "Ref":
        return of_reference(of)
    if function == "Fn::GetAtt":
        return VERSION_NUMBER if of[1] == "VersionNumber" else ARN
    if function == "Fn::Join":
        separator, parts = of
        return sum(map(longest, parts)) + len(separator) * (len(parts) - 1)
    if function == "Fn::If":
        return max(longest(of[1]), longest(of[2]))
    pytest.fail(f"the template uses {function}")


def of_reference(name: str) -> int:
    if name in PSEUDO:
        return PSEUDO[name]
    if name not in source()["Parameters"]:
        return ARN if translated()[name]["Type"] == "AWS::SNS::Topic" else NAME
    parameter = source()["Parameters"][name]
    if "AllowedValues" in parameter:
        return max(len(str(allowed)) for allowed in parameter["AllowedValues"])
    if "MaxValue" in parameter:
        return len(str(parameter["MaxValue"]))
    if "MaxLength" in parameter:
        return int(parameter["MaxLength"])
    (most,) = re.findall(r"\{1,(\d+)\}$", parameter["AllowedPattern"])
    return int(most)


def environments() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, function in of_type("AWS::Lambda::Function").items():
        yield name, function["Environment"]["Variables"]


def test_a_version_can_be_described() -> None:
    descriptions = [
        (resource["Properties"]["VersionDescription"], resource["Properties"]["Description"])
        for resource in source()["Resources"].values()
        if "VersionDescription" in resource.get("Properties", {})
    ]
    assert len(descriptions) == len(FUNCTIONS) + 1, "the hook has one, too"
    assert all(of_version == of_function for of_version, of_function in descriptions)
    assert max(longest(of_version) for of_version, _of_function in descriptions) <= MOST_DESCRIPTION


def test_the_environments_fit() -> None:
    found = dict(environments())
    assert "ProcessTasksFunction" in found
    for name, variables in found.items():
        length = sum(len(key) + longest(value) for key, value in variables.items())
        assert length <= MOST_ENVIRONMENT, name
