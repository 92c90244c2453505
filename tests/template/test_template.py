"""The template, as SAM translates it: what would be deployed, and with which rights."""

import json
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from local.emulator import template_source
from samtranslator.public.translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform

from freshq.aws.archive import ArchiveSettings
from freshq.aws.environment import QueueSettings
from freshq.aws.producer import parse_load_request
from freshq.aws.wakeup import DoorbellSettings
from freshq.aws.worker_pass import SYNTHETIC, WorkerSettings
from freshq.feeds.http_api import MAX_WAIT_SECONDS
from freshq.matching.resource import Resource, ResourceStatus
from freshq.matching.stores.dynamodb import caller_key, encode_resource
from freshq.model.pass_options import PassOptions
from freshq.model.storable_options import StoredOptions
from freshq.model.task import TaskStatus
from freshq.stores.dynamodb.attached.attach import Attachment
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.dynamodb.schema import TTL_ATTRIBUTE, table_definition
from tests.support.functions import load_function
from tests.support.programs import python

PROJECT = Path(__file__).resolve().parents[2]
TEMPLATE = PROJECT / "template.yaml"
READ_BY_OBSERVABILITY = {"FRESHQ_STACK"}
FUNCTIONS = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive", "HttpApi")
HOOK = "CodeDeployHook"  # takes no part in the work


class NoManagedPolicies(ManagedPolicyLoader):  # type: ignore[misc]  # samtranslator has no types
    """The template names no managed policy of AWS, so none needs to be looked up."""

    def __init__(self) -> None:
        super().__init__(None)

    def load(self) -> dict[str, str]:
        return {}


@cache
def source() -> dict[str, Any]:
    """Return the template with its loops written out, before SAM translates it."""
    return template_source()


def translation(values: dict[str, str]) -> dict[str, Any]:
    """Return the template as SAM translates it under some values of parameters."""
    template = deepcopy(source())
    for resource in template["Resources"].values():
        for key in {"CodeUri", "ContentUri"} & resource.get("Properties", {}).keys():
            resource["Properties"][key] = "s3://bucket/key"
    result: dict[str, Any] = transform(template, values, NoManagedPolicies())
    return result


@cache
def translated() -> dict[str, Any]:
    """Return the resources that CloudFormation would make."""
    resources: dict[str, Any] = translation({})["Resources"]
    return resources


@cache
def deployed(deployment_type: str) -> dict[str, Any]:
    """Return the template as SAM translates it; of the parameters, only this one matters to that."""
    defaults = {
        name: entry["Default"] for name, entry in source()["Parameters"].items() if "Default" in entry
    }
    return translation(defaults | {"Stage": "dev", "DeploymentType": deployment_type})


def of_type(kind: str) -> dict[str, dict[str, Any]]:
    return {
        name: resource["Properties"] for name, resource in translated().items() if resource["Type"] == kind
    }


NO_VALUE = {"Ref": "AWS::NoValue"}
OWN_TABLE = {"HasOwnTable": True, "HasAttachRangeKey": False, "HasMatchArchive": False, "HasVpc": False}
ATTACHED = {"HasOwnTable": False, "HasAttachRangeKey": True, "HasMatchArchive": False, "HasVpc": False}


def under(conditions: dict[str, bool], value: Any) -> Any:
    """Return a part of the template with what some conditions choose."""
    if isinstance(value, list):
        return [chosen for each in value if (chosen := under(conditions, each)) != NO_VALUE]
    if not isinstance(value, dict):
        return value
    condition, *choices = value.get("Fn::If", [None])
    if condition in conditions:
        return under(conditions, choices[0] if conditions[condition] else choices[1])
    return {name: under(conditions, inner) for name, inner in value.items()}


def statements(function: str, *, attached: bool = False) -> list[dict[str, Any]]:
    """Return the statements of a function's role, with a table of the stack's own or an attached one."""
    role = translated()[f"{function}Role"]["Properties"]
    policies = under(ATTACHED if attached else OWN_TABLE, role["Policies"])
    return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]


def test_the_template_is_valid(tmp_path: Path) -> None:
    settings = {"SAM_CLI_TELEMETRY": "0", "HOME": str(tmp_path), "AWS_DEFAULT_REGION": "us-east-1"}
    done = python("-m", "samcli", "validate", "--lint", cwd=PROJECT, env=settings, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class TestTable:
    def table(self) -> dict[str, Any]:
        (table,) = of_type("AWS::DynamoDB::Table").values()
        return table

    @pytest.mark.parametrize(
        "part", ["KeySchema", "BillingMode", "AttributeDefinitions", "GlobalSecondaryIndexes"]
    )
    def test_create_table_makes_the_table_that_the_template_declares(self, part: str) -> None:
        here = dict(table_definition("QueueTable"))[part]

        def by_name(entries: Any) -> Any:
            if isinstance(entries, str):
                return entries
            options = ("OnDemandThroughput", "ContributorInsightsSpecification")
            for entry in entries:
                for option in options:
                    entry.pop(option, None)
            return sorted(
                (json.dumps(entry, sort_keys=True) for entry in entries),
            )

        assert by_name(deepcopy(self.table()[part])) == by_name(here)

    def test_ttl_stream_and_encryption(self) -> None:
        table = self.table()
        assert table["TimeToLiveSpecification"] == {"AttributeName": TTL_ATTRIBUTE, "Enabled": True}
        assert table["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
        assert table["SSESpecification"]["SSEEnabled"] is True

    def test_an_attached_table_has_its_place(self) -> None:
        assert source()["Resources"]["QueueTable"]["Condition"] == "HasOwnTable"
        attached = under(ATTACHED, translated())
        del attached["QueueTable"]
        assert "QueueTable" not in re.sub(r"QueueTableName", "", json.dumps(attached))
        for name, mapping in attached.items():
            if mapping["Type"] == "AWS::Lambda::EventSourceMapping" and name != "ArchiveMatches":
                assert mapping["Properties"]["EventSourceArn"] == {"Ref": "AttachStreamArn"}, name

    def test_every_index_of_claimable_records_has_its_alarm(self) -> None:
        """A stack does not know in which order its table was attached, so it watches both indexes."""
        watched = {}
        for attached in (False, True):
            conditions = ATTACHED if attached else OWN_TABLE
            alarms = [
                entry["Properties"]["Dimensions"]
                for entry in under(conditions, translated()).values()
                if entry["Properties"].get("MetricName") == "WriteThrottleEvents"
                and (attached or entry.get("Condition") != "IsAttached")
            ]
            dimensions = [{each["Name"]: each["Value"] for each in alarm} for alarm in alarms]
            indexes = {each.get("GlobalSecondaryIndexName", "") for each in dimensions}
            watched[attached] = {name for name in indexes if "status" in name}
            # The due index and the table itself throttle likewise.
            assert indexes - watched[attached] == {"freshq-due-index" if attached else "due-index", ""}
        orders = [None, KeyPart("price", "N")]
        attachments = [Attachment("Shipments", TableKey.named("id"), order_by=order) for order in orders]
        assert watched[True] == {each.names.index(each.status_index.name) for each in attachments}
        assert watched[False] == {"status-created-index"}
        assert translated()["PositionIndexThrottlesAlarm"]["Condition"] == "IsAttached"

    def test_production_keeps_its_table(self) -> None:
        resource = source()["Resources"]["QueueTable"]
        for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
            assert resource[policy] == {"Fn::If": ["IsProd", "Retain", "Delete"]}


class TestFunctions:
    def test_recursion_is_allowed_by_the_literal_that_cloudformation_knows(self) -> None:
        loops = {name: properties.get("RecursiveLoop") for name, properties in self.functions().items()}
        assert loops == {
            "CreateTasksFunction": None,
            "TriggerFunction": "Allow",
            "ProcessTasksFunction": "Allow",
            "SweepFunction": None,
            "ArchiveFunction": None,
            "HttpApiFunction": None,
            "CodeDeployHookFunction": None,
        }

    def functions(self) -> dict[str, dict[str, Any]]:
        return of_type("AWS::Lambda::Function")

    def test_the_runtime_is_a_parameter(self) -> None:
        assert source()["Parameters"]["Runtime"]["Default"] == "python3.13"
        assert {json.dumps(function["Runtime"]) for function in self.functions().values()} == {
            json.dumps({"Ref": "Runtime"})
        }

    def test_the_layer_is_built_for_the_same_default_runtime(self) -> None:
        makefile = (PROJECT / "layers" / "freshq" / "Makefile").read_text("utf-8")
        parameters = source()["Parameters"]
        assert f"LAYER_RUNTIME ?= {parameters['Runtime']['Default']}\n" in makefile
        assert f"LAYER_ARCHITECTURE ?= {parameters['Architecture']['Default']}\n" in makefile

    @pytest.mark.parametrize(
        ("function", "settings"),
        [
            ("CreateTasks", QueueSettings),
            ("Trigger", DoorbellSettings),
            ("ProcessTasks", WorkerSettings),
            ("Sweep", DoorbellSettings),
            ("Archive", ArchiveSettings),
            ("HttpApi", QueueSettings),
            (HOOK, load_function("code_deploy_hook").HookSettings),
        ],
    )
    def test_every_setting_is_given_and_every_variable_is_read(
        self, function: str, settings: type[QueueSettings]
    ) -> None:
        given = self.functions()[f"{function}Function"]["Environment"]["Variables"]
        ours = {name for name in given if name.startswith("FRESHQ_") and not name.startswith("FRESHQ_DEMO_")}
        read = {f"FRESHQ_{field.upper()}" for field in settings.model_fields} | READ_BY_OBSERVABILITY
        of_all = {f"FRESHQ_{field.upper()}" for field in QueueSettings.model_fields}  # the archive needs few
        assert ours <= read | of_all, "a variable that nothing reads"
        assert read <= ours, "a setting that no parameter can change"

    def test_what_can_be_stored_with_the_queue_is_no_parameter(self) -> None:
        stored = {*StoredOptions.model_fields, *PassOptions.model_fields}
        parameters = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() for name in source()["Parameters"]}
        assert parameters.isdisjoint(stored)
        assert len(parameters) <= 38

    def test_every_function_has_a_role_of_its_own(self) -> None:
        roles = [json.dumps(function["Role"]) for function in self.functions().values()]
        assert len(set(roles)) == len(roles) == len((*FUNCTIONS, HOOK))

    def test_no_wake_up_is_lost_unnoticed(self) -> None:
        for name, config in of_type("AWS::Lambda::EventInvokeConfig").items():
            assert config["DestinationConfig"]["OnFailure"]["Destination"], name
        for name, subscription in of_type("AWS::SNS::Subscription").items():
            assert subscription["RedrivePolicy"]["deadLetterTargetArn"], name


class TestStream:
    def mapping(self, function: str = "Trigger") -> dict[str, Any]:
        (mapping,) = (
            properties
            for name, properties in of_type("AWS::Lambda::EventSourceMapping").items()
            if name.startswith(f"{function}Function")
        )
        return mapping

    def test_the_archive_gets_every_change_of_a_task_and_loses_none(self) -> None:
        mapping = self.mapping("Archive")
        patterns = [json.loads(entry["Pattern"]) for entry in mapping["FilterCriteria"]["Filters"]]
        is_task = {"taskStatus": {"S": [{"exists": True}]}}
        is_record = {"freshq_taskStatus": is_task["taskStatus"]}
        assert patterns == [
            {"dynamodb": {image: what}} for what in (is_task, is_record) for image in ("NewImage", "OldImage")
        ]
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert mapping["DestinationConfig"]["OnFailure"]["Destination"]
        # As long as the stream keeps it.
        assert ("MaximumRecordAgeInSeconds" in mapping, mapping["MaximumRetryAttempts"]) == (False, -1)

    def test_the_archive_is_there_on_request_only(self) -> None:
        parts = [name for name in source()["Resources"] if name.startswith("Archive")]
        assert len(parts) == 15
        conditions = {source()["Resources"][name]["Condition"] for name in parts}
        assert conditions == {"HasArchive", "HasTlsArchive", "HasMatchArchive", "HasSilenceAlarm"}

    def test_the_archive_also_gets_the_resources_and_callers_of_a_match_table(self) -> None:
        own = self.mapping("Archive") | {"EventSourceArn": None, "FilterCriteria": None}
        mapping = translated()["ArchiveMatches"]["Properties"]
        assert mapping | {"EventSourceArn": None, "FilterCriteria": None} == own
        assert mapping["EventSourceArn"] == {"Ref": "MatchStreamArn"}
        prefixes = [
            json.loads(entry["Pattern"])["dynamodb"]["Keys"]["pk"]["S"][0]["prefix"]
            for entry in mapping["FilterCriteria"]["Filters"]
        ]
        keys = [encode_resource(Resource("r", {}, ResourceStatus.AVAILABLE, "t"), 0.0), caller_key("c")]
        assert [key["pk"]["S"][:-1] for key in keys] == prefixes
        (reads,) = (
            each["Fn::If"]
            for policy in source()["Resources"]["ArchiveRole"]["Properties"]["Policies"]
            for each in policy["PolicyDocument"]["Statement"]
            if "ReadMatches" in str(each)
        )
        assert (reads[0], reads[1]["Resource"]) == ("HasMatchArchive", {"Ref": "MatchStreamArn"})

    def test_only_new_claimable_tasks_ring(self) -> None:
        inserted, again, first, put_again = (
            json.loads(entry["Pattern"]) for entry in self.mapping()["FilterCriteria"]["Filters"]
        )
        claimable = {"taskStatus": {"S": ["PENDING"]}, "pendingShard": {"S": [{"exists": True}]}}
        assert inserted == {"eventName": ["INSERT"], "dynamodb": {"NewImage": claimable}}
        assert again.pop("eventName") == ["MODIFY"]
        over = again["dynamodb"]["OldImage"]["taskStatus"]["S"]
        of_application = {TaskStatus.READY, TaskStatus.UNDER_CONSTRUCTION}
        assert set(over) == set(TaskStatus) - {TaskStatus.TAKEN} - of_application
        assert again["dynamodb"]["NewImage"] == claimable
        put = {f"freshq_{name}": value for name, value in claimable.items()}
        for pattern, before in ((first, [{"exists": False}]), (put_again, over)):
            assert pattern == {
                "eventName": ["MODIFY"],
                "dynamodb": {"OldImage": {"freshq_taskStatus": {"S": before}}, "NewImage": put},
            }

    def test_a_failing_batch_is_retried_then_kept(self) -> None:
        mapping = self.mapping()
        assert mapping["MaximumRetryAttempts"] > 0
        assert mapping["DestinationConfig"]["OnFailure"]["Destination"]


class TestRights:
    """Least privilege: what each function may do is what its code calls, on its own resources."""

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_nothing_is_allowed_everywhere_but_tracing(self, function: str) -> None:
        for statement in statements(function):
            assert statement["Effect"] == "Allow"
            assert statement["Sid"]
            assert "*" not in json.dumps(statement["Action"])
            if statement["Resource"] == "*":
                assert {action.split(":")[0] for action in statement["Action"]} == {"xray"}

    @pytest.mark.parametrize("has_vpc", [False, True])
    def test_the_worker_enters_a_vpc_by_its_role_alone(self, *, has_vpc: bool) -> None:
        """A policy beside the role would be made together with the function, whose creation needs it."""
        (policy,) = under(OWN_TABLE | {"HasVpc": has_vpc}, translated()["ProcessTasksRole"])["Properties"][
            "Policies"
        ]
        assert ("ec2:CreateNetworkInterface" in json.dumps(policy)) is has_vpc
        assert not of_type("AWS::IAM::Policy") | of_type("AWS::IAM::RolePolicy")


class TestHttpApi:
    def resource(self, name: str) -> dict[str, Any]:
        properties: dict[str, Any] = translated()[f"HttpApi{name}"]["Properties"]
        return properties

    def test_it_is_there_on_request_only(self) -> None:
        parts = [name for name in source()["Resources"] if name.startswith("HttpApi")]
        assert len(parts) == 10
        conditions = {name: source()["Resources"][name]["Condition"] for name in parts}
        assert conditions.pop("HttpApiAuthorizer") == "HasJwt"
        assert set(conditions.values()) == {"HasHttpApi"}
        assert source()["Parameters"]["HttpApi"]["Default"] == "off"

    @pytest.mark.parametrize(("has_jwt", "expected"), [(False, "AWS_IAM"), (True, "JWT")])
    def test_every_path_needs_a_caller_who_may_call(self, expected: str, *, has_jwt: bool) -> None:
        routes = of_type("AWS::ApiGatewayV2::Route")
        (route,) = (under({"HasJwt": has_jwt}, properties) for properties in routes.values())
        assert (route["RouteKey"], route["AuthorizationType"]) == ("$default", expected)
        authorizer = {"Ref": "HttpApiAuthorizer"} if has_jwt else NO_VALUE
        assert route["AuthorizerId"] == authorizer
        assert "AuthorizationScopes" not in route
        given = self.resource("Authorizer")["JwtConfiguration"]
        assert given == {"Issuer": {"Ref": "JwtIssuer"}, "Audience": {"Ref": "JwtAudiences"}}

    def test_only_the_api_invokes_the_function_by_its_alias(self) -> None:
        permission, integration = self.resource("Permission"), self.resource("Integration")
        alias = {"Ref": "HttpApiFunctionAliaslive"}
        assert (permission["FunctionName"], integration["IntegrationUri"]) == (alias, alias)
        assert permission["SourceArn"]["Fn::Sub"].endswith(":${HttpApiGateway}/*")
        assert integration["PayloadFormatVersion"] == "2.0"
        invokers = [
            each["Principal"]
            for each in of_type("AWS::Lambda::Permission").values()
            if "HttpApi" in json.dumps(each["FunctionName"])
        ]
        assert invokers == ["apigateway.amazonaws.com"]

    def test_the_function_ends_before_api_gateway_gives_up(self) -> None:
        gives_up_seconds = 30
        timeout = self.resource("Function")["Timeout"]
        handler = load_function("http_api")
        assert MAX_WAIT_SECONDS + handler.ANSWER_SECONDS < timeout < gives_up_seconds

    def test_the_access_log_is_json_and_has_no_ids_of_tasks(self) -> None:
        settings = self.resource("Stage")["AccessLogSettings"]
        assert settings["DestinationArn"] == {"Fn::GetAtt": ["HttpApiLogs", "Arn"]}
        logged = json.loads(settings["Format"])
        assert {"$context.status", "$context.identity.userArn"} <= set(logged.values())
        assert all(re.fullmatch(r"\$context\.[a-zA-Z.]+", value) for value in logged.values())
        assert "query" not in settings["Format"].lower()


def schedule(function: str) -> dict[str, Any]:
    (found,) = (
        properties
        for name, properties in of_type("AWS::Scheduler::Schedule").items()
        if name.startswith(function)
    )
    return found


@pytest.mark.parametrize("function", ["Sweep", "CreateTasks"])
def test_schedules_run_every_minute_under_names_that_two_stacks_do_not_share(function: str) -> None:
    assert schedule(function)["ScheduleExpression"] == "rate(1 minute)"
    assert "Name" not in schedule(function)


def test_the_synthetic_task_is_put_on_request_and_is_one_that_the_worker_knows() -> None:
    state = schedule("CreateTasks")["State"]
    assert state == {"Fn::If": ["HasSyntheticTask", "ENABLED", "DISABLED"]}
    (task,) = parse_load_request(json.loads(schedule("CreateTasks")["Target"]["Input"])).tasks or []
    assert task["kind"] == SYNTHETIC


def test_a_schedule_that_cannot_invoke_leaves_its_event_in_the_failed_event_queue() -> None:
    queue = {"Fn::GetAtt": ["DeadLetters", "Arn"]}
    for function in ("Sweep", "CreateTasks"):
        assert schedule(function)["Target"]["DeadLetterConfig"] == {"Arn": queue}
    (role,) = (properties for name, properties in of_type("AWS::IAM::Role").items() if "Minute" in name)
    sends = [
        statement["Resource"]
        for policy in role["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
        if "sqs:SendMessage" in statement["Action"]
    ]
    assert sends == [queue]


@pytest.mark.parametrize("template", [TEMPLATE, PROJECT / "pipeline" / "template.yaml"], ids=str)
def test_every_resource_says_why_it_is_there(template: Path) -> None:
    lines = template.read_text("utf-8").splitlines()
    start, end = lines.index("Resources:"), lines.index("Outputs:")
    unexplained = [
        lines[index].strip()
        for index in range(start + 1, end)
        if re.fullmatch(r"  ([A-Z]\w+|Fn::ForEach::\w+):", lines[index]) and not explained(lines, index)
    ]
    assert unexplained == []


def explained(lines: list[str], index: int) -> bool:
    """Return whether the comment above a resource gives a reason."""
    return any("Why" in line for line in comment_above(lines, index))


def comment_above(lines: list[str], index: int) -> Iterator[str]:
    while lines[index - 1].startswith("  #"):
        index -= 1
        yield lines[index]


def test_the_layer_is_locked_with_hashes_to_the_versions_that_are_tested() -> None:
    pattern = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
    tested = dict(pattern.findall((PROJECT / "requirements" / "dev.txt").read_text("utf-8")))
    layer_file = (PROJECT / "layers" / "freshq" / "requirements.txt").read_text("utf-8")
    layer = dict(pattern.findall(layer_file))
    assert {"aws-lambda-powertools", "pydantic"} <= layer.keys()
    assert "boto3" not in layer
    assert {name: tested.get(name) for name in layer} == layer
    assert layer_file.count("--hash=sha256:") >= len(layer)


def test_every_environment_of_samconfig_names_its_stack() -> None:
    config = tomllib.loads((PROJECT / "samconfig.toml").read_text("utf-8"))
    stacks = {
        name: config[name]["deploy"]["parameters"]["stack_name"]
        for name in ("default", "local", "dev", "prod")
    }
    assert len(set(stacks.values())) == 4
    assert config["prod"]["deploy"]["parameters"]["confirm_changeset"] is True
