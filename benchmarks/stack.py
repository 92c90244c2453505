"""What the bill and its tests read of template.yaml: defaults, alarms, and how Firehose collects events."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

TEMPLATE: Final = Path("template.yaml")
# Of the alarms' conditions, those that are true of a stack in an account that has the archive, and no more.
USUAL: Final = frozenset({None, "InAccount", "HasArchive"})


@cache
def template() -> dict[str, Any]:
    """Return the template."""
    parsed: dict[str, Any] = yaml_parse(TEMPLATE.read_text("utf-8"))
    return parsed


def default(parameter: str) -> str:
    """Return the default of a parameter, as CloudFormation shows it."""
    return str(template()["Parameters"][parameter]["Default"])


def alarm_metrics() -> int:
    """Return how many metrics the usual alarms watch: CloudWatch bills an alarm by these."""
    alarms = (
        resource["Properties"]
        for resource in template()["Resources"].values()
        if resource["Type"] == "AWS::CloudWatch::Alarm" and resource.get("Condition") in USUAL
    )
    return sum(sum("MetricStat" in each for each in alarm.get("Metrics", [])) or 1 for alarm in alarms)


def archive_buffer() -> tuple[int, int]:
    """Return after how many seconds, and how many bytes, Firehose writes an object."""
    properties = template()["Resources"]["ArchiveDelivery"]["Properties"]
    hints = properties["ExtendedS3DestinationConfiguration"]["BufferingHints"]
    return hints["IntervalInSeconds"], hints["SizeInMBs"] * 2**20
