"""The pipeline's stack on the emulator, without what the emulator lacks: EMR Serverless, saved queries."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from local.emulator import Emulator
from samtranslator.yaml_helper import yaml_parse

from tests.e2e.conftest import wait_until
from tests.template.test_pipeline_template import TEMPLATE

APPLICATION = "00app"
UNKNOWN = ("AWS::Athena::NamedQuery", "AWS::EMRServerless::Application")
STACK = "pipeline"


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Callable[[Any], Any]]:
    """Return a function that makes clients of an emulator."""
    with Emulator(tmp_path / "emulator.log") as emulator:
        yield lambda service: boto3.client(service, **emulator.connection)


def known_part() -> str:
    """Return the template without what the emulator lacks; the application has a fixed id."""
    template = yaml_parse(TEMPLATE.read_text("utf-8"))
    resources = template["Resources"]
    template["Resources"] = {name: one for name, one in resources.items() if one["Type"] not in UNKNOWN}
    arn = f"arn:aws:emr-serverless:us-east-1:000000000000:/applications/{APPLICATION}"
    text = json.dumps(template)
    text = text.replace(json.dumps({"Fn::GetAtt": ["Application", "Arn"]}), json.dumps(arn))
    text = text.replace(json.dumps({"Ref": "Application"}), json.dumps(APPLICATION))
    return text.replace("${Application}", APPLICATION)


def test_the_stack_deploys(clients: Callable[[Any], Any]) -> None:
    topic = clients("sns").create_topic(Name="alarms")["TopicArn"]
    given = {"ArchiveBucketName": "landed", "ScheduleState": "ENABLED", "AlarmTopicArn": topic}
    given |= {"KeepSilverDays": "90", "OtherOrder": "mail,ship"}
    formation = clients("cloudformation")
    formation.create_stack(
        StackName=STACK,
        TemplateBody=known_part(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
    )

    def described() -> Any:
        (stack,) = formation.describe_stacks(StackName=STACK)["Stacks"]
        return None if stack["StackStatus"].endswith("IN_PROGRESS") else stack

    stack = wait_until(described)
    assert stack["StackStatus"] == "CREATE_COMPLETE", stack
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    bucket = outputs["BucketName"]

    assert clients("glue").get_database(Name="freshq")["Database"]["Name"] == "freshq"
    group = clients("athena").get_work_group(WorkGroup=outputs["WorkGroupName"])["WorkGroup"]["Configuration"]
    assert group["ResultConfiguration"]["OutputLocation"] == f"s3://{bucket}/results/"
    filters = clients("logs").describe_metric_filters(logGroupName=outputs["LogGroupName"])["metricFilters"]
    assert len(filters) == 2
    alarms = clients("cloudwatch").describe_alarms()["MetricAlarms"]
    assert sorted((one["MetricName"], one["AlarmActions"][0]) for one in alarms) == [
        ("NewLedgerViolations", topic),
        ("RunsFinished", topic),
    ]
    (rule,) = clients("events").list_rules()["Rules"]
    (target,) = clients("events").list_targets_by_rule(Rule=rule["Name"])["Targets"]
    assert target["Arn"] == topic
    schedule = clients("scheduler").get_schedule(
        Name=clients("scheduler").list_schedules()["Schedules"][0]["Name"]
    )
    job = json.loads(schedule["Target"]["Input"])
    assert job["JobDriver"]["SparkSubmit"]["EntryPointArguments"] == [
        *("run", "--events", "s3://landed/events", "--out", f"s3://{bucket}/out"),
        *("--json", "--catalog", outputs["Catalog"], *outputs["RunOptions"].split()),
    ]
    retention = "--keep-runs 5 --max-reject-ratio 0.2 --keep-silver-days 90 --other-order mail,ship"
    assert outputs["RunOptions"] == retention
