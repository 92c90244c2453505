"""Options of a deployment: versions, keys, caps, the network, and parts that the emulator lacks."""

import json
import re
import tomllib
from typing import Any

import pytest

from tests.template.test_template import FUNCTIONS, HOOK, PROJECT, deployed, source

# Resources that the embedded emulator's CloudFormation lacks, found by trying.
NOT_IN_THE_EMULATOR = ("AWS::Logs::QueryDefinition", "AWS::Budgets::Budget")

OF_NEW_VERSIONS = [
    f"New{function}FailsAlarm" for function in FUNCTIONS if function not in ("Archive", "HttpApi")
]


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


def test_events_invoke_the_deployed_version() -> None:
    resources = deployed("AllAtOnce")["Resources"]
    aliases = {name for name, entry in resources.items() if entry["Type"] == "AWS::Lambda::Alias"}
    assert aliases == {f"{function}FunctionAliaslive" for function in (*FUNCTIONS, HOOK)}
    invoked = [
        json.dumps(entry["Properties"].get("Endpoint") or entry["Properties"].get("FunctionName"))
        for entry in resources.values()
        if entry["Type"] in ("AWS::SNS::Subscription", "AWS::Lambda::EventSourceMapping")
    ]
    assert len(invoked) == 5
    assert all("Aliaslive" in target for target in invoked)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_versions_start_from_snapshots_on_request(function: str) -> None:
    applied = deployed("AllAtOnce")["Resources"][f"{function}Function"]["Properties"]["SnapStart"]
    assert applied == {"Fn::If": ["HasSnapStart", {"ApplyOn": "PublishedVersions"}, {"Ref": "AWS::NoValue"}]}
    assert source()["Parameters"]["SnapStart"]["Default"] == "off"
    assert "SnapStart" not in deployed("AllAtOnce")["Resources"][f"{HOOK}Function"]["Properties"], (
        "a snapshot for nothing"
    )


def test_a_gradual_deployment_is_rolled_back_by_the_alarms() -> None:
    groups = {
        name.removesuffix("FunctionDeploymentGroup"): entry["Properties"]
        for name, entry in deployed("Canary10Percent5Minutes")["Resources"].items()
        if entry["Type"] == "AWS::CodeDeploy::DeploymentGroup"
    }
    assert groups.keys() == set(FUNCTIONS)
    for function, group in groups.items():
        named = [alarm["Name"] for alarm in group["AlarmConfiguration"]["Alarms"]]
        alarms = {name["Ref"] if "Ref" in name else name["Fn::If"][1]["Ref"] for name in named}
        assert "ProcessTasksErrorsAlarm" in alarms
        assert ("HttpApiFailsAlarm" in alarms) == (function == "HttpApi"), "others may lack that alarm"
        assert {name for name in alarms if name.startswith("New")} == set(OF_NEW_VERSIONS)
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        assert group["ServiceRoleArn"] == {"Fn::GetAtt": ["DeploymentRole", "Arn"]}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_hook_goes_before_every_gradual_deployment(function: str) -> None:
    resources = deployed("Canary10Percent5Minutes")["Resources"]
    update = resources[f"{function}FunctionAliaslive"]["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
    assert update["BeforeAllowTrafficHook"]["Fn::If"][:2] == ["IsGradual", {"Ref": f"{HOOK}Function"}]
    hook = resources[f"{HOOK}Function"]["Properties"]
    versions = json.dumps(hook["Environment"]["Variables"])
    assert re.search(rf'"Ref": "{function}FunctionVersion\w+"', versions)
    # AWS's role for CodeDeploy allows the names that begin so; a name has at most 64 letters.
    assert hook["FunctionName"]["Fn::Sub"][0] == "CodeDeployHook_${Id}"
    assert f"{HOOK}FunctionAliaslive" in resources
    assert "UpdatePolicy" not in resources[f"{HOOK}FunctionAliaslive"], "the hook would wait for itself"


def test_the_hook_may_invoke_the_functions_and_report_and_nothing_else() -> None:
    (policy,) = source()["Resources"][f"{HOOK}Role"]["Properties"]["Policies"]
    rights = {each["Sid"]: each for each in policy["PolicyDocument"]["Statement"]}
    assert {sid: each["Action"] for sid, each in rights.items() if sid not in ("WriteLogs", "Trace")} == {
        "InvokeNewVersions": "lambda:InvokeFunction",
        "Report": "codedeploy:PutLifecycleEventHookExecutionStatus",
    }
    invoked = re.findall(r"\$\{(\w+)Function\.Arn\}:\*", json.dumps(rights["InvokeNewVersions"]["Resource"]))
    assert sorted(invoked) == sorted(FUNCTIONS)
    groups = rights["Report"]["Resource"]["Fn::Sub"]
    assert groups.endswith("${AWS::AccountId}:deploymentgroup:*"), "a long name of a stack is cut"


@pytest.mark.parametrize("alarm", OF_NEW_VERSIONS)
def test_one_error_of_a_new_version_is_enough(alarm: str) -> None:
    properties = deployed("Canary10Percent5Minutes")["Resources"][alarm]["Properties"]
    function = alarm.removeprefix("New").removesuffix("FailsAlarm") + "Function"
    dimensions = {each["Name"]: each["Value"] for each in properties["Dimensions"]}
    assert dimensions["Resource"] == {"Fn::Join": [":", [{"Ref": function}, "live"]]}
    version, attribute = dimensions["ExecutedVersion"]["Fn::GetAtt"]
    assert (version.startswith(f"{function}Version"), attribute) == (True, "Version")
    assert (properties["EvaluationPeriods"], properties["Threshold"]) == (1, 1)


@pytest.mark.parametrize("deployment_type", ["AllAtOnce"])
def test_a_simple_deployment_needs_no_codedeploy(deployment_type: str) -> None:
    kinds = {entry["Type"] for entry in deployed(deployment_type)["Resources"].values()}
    assert not {kind for kind in kinds if kind.startswith("AWS::CodeDeploy")}


def test_every_deployment_type_says_whether_it_is_gradual() -> None:
    types = source()["Parameters"]["DeploymentType"]["AllowedValues"]
    assert source()["Mappings"]["Deployments"].keys() == set(types)


def test_the_emulator_is_spared_what_it_does_not_have() -> None:
    conditions = source()["Conditions"]
    assert conditions["InAccount"] == {"Fn::Not": [{"Fn::Equals": [{"Ref": "Stage"}, "local"]}]}
    for name, resource in source()["Resources"].items():
        if resource["Type"] in NOT_IN_THE_EMULATOR or "Metrics" in resource.get("Properties", {}):
            assert resource["Condition"] in ("InAccount", "HasBudget", "HasSilenceAlarm"), name


def test_every_alarm_says_when_it_is_over() -> None:
    for name, resource in source()["Resources"].items():
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            assert resource["Properties"]["OKActions"] == resource["Properties"]["AlarmActions"], name


def test_the_customer_managed_key_encrypts_whatever_holds_data() -> None:
    by_key = {
        name
        for name, resource in source()["Resources"].items()
        if "EncryptionKey" in json.dumps(resource.get("Properties", {}))
    }
    logs = {name for name, entry in source()["Resources"].items() if entry["Type"] == "AWS::Logs::LogGroup"}
    assert by_key == {
        "QueueTable",
        "TriggerTopic",
        "ProcessTasksTopic",
        "DeadLetters",
        "ArchiveBucket",
        *logs,
    }
    key = source()["Resources"]["EncryptionKey"]["Properties"]
    assert key["EnableKeyRotation"] is True
    services = {
        service if isinstance(service, str) else service["Fn::Sub"]
        for statement in key["KeyPolicy"]["Statement"]
        for service in _listed(statement["Principal"].get("Service", []))
    }
    assert services == {
        "cloudwatch.amazonaws.com",
        "scheduler.amazonaws.com",
        "sns.amazonaws.com",
        "logs.${AWS::Region}.${AWS::URLSuffix}",  # the only one that differs in China
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_the_published_application_has_the_version_of_the_package() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    metadata = source()["Metadata"]["AWS::ServerlessRepo::Application"]
    assert metadata["SemanticVersion"] == project["version"]
    assert (metadata["SpdxLicenseId"], metadata["Name"]) == (project["license"], project["name"])
    for key in ("LicenseUrl", "ReadmeUrl"):
        assert (PROJECT / metadata[key]).exists()


def test_every_parameter_is_in_the_console_form() -> None:
    groups = source()["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    shown = [name for group in groups for name in group["Parameters"]]
    assert sorted(shown) == sorted(source()["Parameters"])
