"""Changes that publish a version, and versions that stay: the template as CloudFormation reads it.

CloudFormation replaces a version if a property changes that cannot be updated. Lambda publishes no version of
a function whose code and configuration have not changed: the whole update is rolled back then.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.template.test_rules import refusals
from tests.template.test_template import FUNCTIONS, HOOK, deployed, source

# Properties of a function that all of its versions share.
NOT_OF_A_VERSION: Final = ("ReservedConcurrentExecutions", "RecursiveLoop", "Tags")
NO_VALUE: Final = object()
PSEUDO: Final = {
    "AWS::StackName": "freshq",
    "AWS::StackId": "arn:aws:cloudformation:eu-west-1:123456789012:stack/freshq/0123",
    "AWS::Region": "eu-west-1",
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::NoValue": NO_VALUE,
}
ARN: Final = "arn:aws:sns:eu-west-1:123456789012:alarms"
STREAM: Final = "arn:aws:dynamodb:eu-west-1:123456789012:table/Shipments/stream/1"
ATTACHED: Final = {"AttachTable": "Shipments", "AttachKey": "id", "AttachStreamArn": STREAM}
IN_VPC: Final = {"VpcSubnetIds": "subnet-1,subnet-2", "VpcSecurityGroupIds": "sg-1"}
# Deployments from which one parameter changes.
BASES: Final[dict[str, dict[str, str]]] = {
    "the defaults": {},
    "an own runner": {"Runner": "quotes:run", "RunnerEnvironment": '{"BUCKET": "one"}', "Release": "7"},
    "an attached table": ATTACHED,
    "a VPC, archived, by snapshots": {**IN_VPC, "Archive": "on", "SnapStart": "on"},
    "served over HTTP": {"HttpApi": "on", "Release": "9"},
    "gradual": {"DeploymentType": "Canary10Percent5Minutes", "Stage": "prod", "AlarmTopicArn": ARN},
}
# Other values than any base has, of parameters without a list of allowed ones.
OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "Runner": ("prices:run", "quotes:other"),
    "RunnerEnvironment": ('{"BUCKET": "two"}', '{"BUCKET": "eno"}', "{}"),
    "AttachTable": ("Parcels",),
    "AttachKey": ("key",),
    "VpcSubnetIds": ("subnet-3",),
    "VpcSecurityGroupIds": ("sg-1,sg-2",),
    "RunnerPolicyArns": ("arn:aws:iam::123456789012:policy/read",),
}


class Stack:
    """The resources of the translated template under some parameters, with their values."""

    def __init__(self, given: Mapping[str, str]) -> None:
        parameters = source()["Parameters"]
        defaults = {name: str(entry.get("Default", "dev")) for name, entry in parameters.items()}
        values = defaults | dict(given)
        lists = {name for name, entry in parameters.items() if entry["Type"] == "CommaDelimitedList"}
        self._values = PSEUDO | {
            name: value.split(",") if name in lists else value for name, value in values.items()
        }
        translated = deployed(values["DeploymentType"])
        self._conditions, self._mappings = translated["Conditions"], translated["Mappings"]
        self._resources = translated["Resources"]
        self._known: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return the code and the configuration of a function that its versions freeze; None without it."""
        found = self._properties(f"{name}Function")
        return found and {key: value for key, value in found.items() if key not in NOT_OF_A_VERSION}

    def version(self, name: str) -> Any:
        """Return what identifies the version of a function; None without one."""
        for logical_id, resource in self._resources.items():
            if resource["Type"] == "AWS::Lambda::Version" and logical_id.startswith(f"{name}FunctionVersion"):
                return self._identity(logical_id)
        raise KeyError(name)

    def _properties(self, logical_id: str) -> Any:
        resource = self._resources[logical_id]
        if not self._holds(resource.get("Condition", {"Fn::Equals": ["", ""]})):
            return None
        if logical_id not in self._known:
            self._known[logical_id] = self._value(resource["Properties"])
        return self._known[logical_id]

    def _identity(self, logical_id: str) -> Any:
        """Return a text that changes if CloudFormation replaces the resource; None without the resource."""
        # Only the process that runs these tests needs it, and all of them collect this file.
        from cfnlint.schema import PROVIDER_SCHEMA_MANAGER  # noqa: PLC0415 - a second to load

        properties = self._properties(logical_id)
        if properties is None:
            return None
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(
            "us-east-1", self._resources[logical_id]["Type"]
        ).schema
        fixed = [name.removeprefix("/properties/") for name in schema.get("createOnlyProperties", [])]
        return json.dumps([logical_id, {name: properties.get(name) for name in fixed}], sort_keys=True)

    def _value(self, part: Any) -> Any:
        if isinstance(part, list):
            return [value for each in part if (value := self._value(each)) is not NO_VALUE]
        if not isinstance(part, dict):
            return part
        if len(part) == 1:
            ((function, argument),) = part.items()
            if function == "Ref" or function.startswith("Fn::"):
                return self._called(function, argument)
        found = {name: self._value(each) for name, each in part.items()}
        return {name: value for name, value in found.items() if value is not NO_VALUE}

    def _called(self, function: str, argument: Any) -> Any:
        if function == "Ref":
            return self._values[argument] if argument in self._values else self._identity(argument)
        if function == "Fn::If":
            condition, *choices = argument
            return self._value(choices[0 if self._holds({"Condition": condition}) else 1])
        if function == "Fn::GetAtt":
            return [self._identity(argument[0]), argument[1]]
        if function in ("Fn::Sub", "Fn::FindInMap", "Fn::Select", "Fn::Split"):
            return json.dumps([function, argument])  # of the stack's name and id only
        if function == "Fn::Join":
            return argument[0].join(str(value) for value in self._value(argument[1]))
        return pytest.fail(f"a function has {function}")

    def _holds(self, condition: Any) -> bool:
        if isinstance(condition, str):
            return self._holds(self._conditions[condition])
        ((function, argument),) = condition.items()
        if function == "Condition":
            return self._holds(argument)
        if function == "Fn::Equals":
            left, right = (self._value(side) for side in argument)
            return bool(str(left) == str(right))
        if function == "Fn::Not":
            return not self._holds(argument[0])
        return {"Fn::And": all, "Fn::Or": any}[function](map(self._holds, argument))


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


def others(name: str, parameter: Mapping[str, Any]) -> Iterator[str]:
    """Yield other values of a parameter."""
    if name in OTHERS:
        yield from OTHERS[name]
    elif "AllowedValues" in parameter:
        # The emulator is no account, so a stack cannot change between the two.
        yield from (value for value in map(str, parameter["AllowedValues"]) if value != "local")
    elif parameter["Type"] == "Number":
        yield str(float(parameter["Default"]) + 1)
    else:
        yield f"{parameter['Default']}-2"


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("parameter", source()["Parameters"])
def test_a_parameter_publishes_a_version_of_each_function_that_it_changes(base: str, parameter: str) -> None:
    before = Stack(BASES[base])
    for value in others(parameter, source()["Parameters"][parameter]):
        given = BASES[base] | {parameter: value}
        if refusals(**given):
            continue  # never deployed
        after = Stack(given)
        for function in FUNCTIONS:
            if before.function(function) is None or after.function(function) is None:
                continue  # made or deleted by this parameter
            changed = before.function(function) != after.function(function)
            published = before.version(function) != after.version(function)
            assert published == changed, f"{function} with {parameter}={value}"


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        ("Runner", "quotes:run", True),
        ("TimeoutSeconds", "300", True),
        ("Release", "2", True),
        ("RunnerEnvironment", '{"BUCKET": "one"}', True),
        ("AlarmTopicArn", ARN, False),
        ("ReservedConcurrency", "5", False),
    ],
)
def test_the_worker_gets_a_version_for_what_it_reads(parameter: str, value: str, expected: bool) -> None:
    published = Stack({}).version("ProcessTasks") != Stack({parameter: value}).version("ProcessTasks")
    assert published is expected


@pytest.mark.parametrize("function", [*FUNCTIONS, HOOK])
def test_only_the_version_in_service_is_kept(function: str) -> None:
    resources = deployed("Canary10Percent5Minutes")["Resources"]
    versions = [entry for name, entry in resources.items() if name.startswith(f"{function}FunctionVersion")]
    assert [version["DeletionPolicy"] for version in versions] == ["Delete"]
    assert versions[0].get("UpdateReplacePolicy", "Delete") == "Delete"
