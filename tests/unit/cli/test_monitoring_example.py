"""The examples of monitoring and scaling use metrics that exist, and each alert fires."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import botocore.session
import pytest
from botocore.validate import validate_parameters
from prometheus_client import CollectorRegistry, generate_latest
from samtranslator.yaml_helper import yaml_parse

from freshq import Queue, Worker
from freshq.aws.observability import metrics
from freshq.policy import ShedReason
from freshq.queue.gauges import GAUGES
from freshq.telemetry import Prometheus
from freshq.telemetry.prometheus import COUNTERS, HISTOGRAMS, SHED, prometheus_name

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDER = EXAMPLES / "monitoring"
COUNTED = {f"{prometheus_name(name)}_total" for name in (*COUNTERS, SHED)}
SERVED = {prometheus_name(name) for name in GAUGES} | COUNTED
SERVED |= {f"{prometheus_name(name)}_bucket" for name in HISTOGRAMS}


def used(text: str) -> set[str]:
    return set(re.findall(r"\bfreshq_\w+", text))


def test_the_rules_use_metrics_that_are_served() -> None:
    text = (FOLDER / "freshq.rules.yml").read_text("utf-8")
    assert used(text) <= SERVED
    assert "freshq_shed_ratio" in used(text)


def test_the_dashboard_uses_metrics_that_are_served() -> None:
    dashboard = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(targets) >= len(dashboard["panels"])
    assert used(" ".join(target["expr"] for target in targets)) <= SERVED


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    rules = yaml_parse((FOLDER / "freshq.rules.yml").read_text("utf-8"))["groups"][0]["rules"]
    tests = yaml_parse((FOLDER / "freshq.rules.test.yml").read_text("utf-8"))["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert {rule["alert"] for rule in rules} == fired
    assert all({"summary", "action"} == rule["annotations"].keys() for rule in rules)


@pytest.fixture
def promtool() -> str:
    """Return the path of promtool."""
    found = shutil.which("promtool")
    if found is None:
        assert "FRESHQ_REQUIRE_PROMTOOL" not in os.environ
        pytest.skip("promtool is missing; Debian has it in the package prometheus")
    return found


def test_the_counters_have_names_and_units_of_prometheus(promtool: str) -> None:
    registry = CollectorRegistry()
    telemetry = Prometheus(registry)
    queue = Queue.memory(telemetry=telemetry)
    queue.put(1, kind="mail", value=2)
    Worker(queue, lambda _task: None, idle_exit_seconds=0.05).run()
    telemetry.shed(queue.name, ShedReason.EXPIRED, 1)
    text = generate_latest(registry)
    assert all(f"{prometheus_name(name)}_count".encode() in text for name in HISTOGRAMS)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_each_alert_is_fired_by_its_cause(promtool: str) -> None:
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "freshq.rules.test.yml"]):
        done = subprocess.run([promtool, *command], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_keda_scales_by_a_metric_that_is_served() -> None:
    scaled = yaml_parse((EXAMPLES / "scaling" / "keda.yml").read_text("utf-8"))
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert used(trigger["metadata"]["query"]) == {prometheus_name("WantedServers")} <= SERVED
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes only strings"


def test_application_auto_scaling_scales_by_a_metric_that_the_sweep_emits() -> None:
    policy = json.loads((EXAMPLES / "scaling" / "application-auto-scaling.json").read_text("utf-8"))
    api = botocore.session.get_session().get_service_model("application-autoscaling")
    shape = api.operation_model("PutScalingPolicy").input_shape
    assert shape is not None
    validate_parameters(policy, shape)
    queries = policy["TargetTrackingScalingPolicyConfiguration"]["CustomizedMetricSpecification"]["Metrics"]
    (wanted,) = [query["MetricStat"]["Metric"] for query in queries if query["Id"] == "wanted"]
    assert wanted["MetricName"] in GAUGES
    assert wanted["Namespace"] == metrics.namespace == "freshq"
    names = {dimension["Name"] for dimension in wanted["Dimensions"]}
    assert names == {"service", *metrics.default_dimensions}
    assert [query["Id"] for query in queries if query["ReturnData"]] == ["slots_of_a_worker"]
