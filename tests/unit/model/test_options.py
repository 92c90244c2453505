"""The options by name, as type checkers see them, are the options that are checked."""

from typing import Any

import pytest
from pydantic import BaseModel

from freshq import GroupRule, GroupRules
from freshq.model.options import QueueConfig, QueueOptions, checked_options
from freshq.model.storable_options import as_text, count_or_none
from freshq.worker.options import WorkerConfig, WorkerOptions
from tests.support.refusals import refused


@pytest.mark.parametrize(("typed", "checked"), [(QueueOptions, QueueConfig), (WorkerOptions, WorkerConfig)])
def test_type_checkers_know_every_option(typed: Any, checked: type[BaseModel]) -> None:
    assert typed.__annotations__.keys() == checked.model_fields.keys()


@pytest.mark.parametrize("checked", [QueueConfig, WorkerConfig])
def test_every_option_has_a_help_text(checked: type[BaseModel]) -> None:
    assert [name for name, option in checked.model_fields.items() if not option.description] == []


def test_the_rules_of_groups_are_written_as_json() -> None:
    text = '{"default": {"weight": 0.5}, "of": {"acme": {"max_running": 5}}, "separator": "/"}'
    rules = checked_options({"groups": text}).groups
    assert rules == GroupRules(GroupRule(weight=0.5), {"acme": GroupRule(max_running=5)}, "/")
    assert as_text(rules) == text
    assert checked_options({"groups": "none"}).groups == GroupRules()
    assert as_text(GroupRules()) == "none"


@pytest.mark.parametrize(
    ("text", "named"),
    [('{"of": {"acme": {"weight": 0}}}', "of.acme.weight"), ('{"rules": {}}', "rules: unknown"),
     ('{"of": {"acme": {"limit": 1}}}', "of.acme.limit: unknown"), ("acme=3", "JSON"), ("[]", "JSON object"),
     ('{"of": []}', "of: must be a JSON object"), ('{"default": 3}', "default: must be a JSON object"),
     ('{"kinds": {"a": {"units_per_second": 1' + 400 * "0" + "}}}", "kinds.a.units_per_second: must be"),
     ('{"kinds": {"\\ud800": {"rate_per_second": 1}}}', "kinds: no .* lone surrogate"),
     (5000 * "[", "JSON")],
    ids=["weight", "part", "setting", "text", "list", "of", "default", "huge", "surrogate", "deep"],
)  # fmt: skip
def test_wrong_rules_of_groups_are_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"groups: .*{named}") as wrong:
        checked_options({"groups": text})
    assert str(wrong.value).count(", got ") <= 1


def test_a_queue_has_a_bounded_number_of_rules() -> None:
    with refused("of"):
        GroupRules(of={str(number): GroupRule() for number in range(1001)})


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("none", "none"), ("NONE", "none"), ("-1", -1)])
def test_a_count_may_be_none(text: str, value: int | str) -> None:
    assert count_or_none(text) == value


@pytest.mark.parametrize("text", ["", "1.5", "many"])
def test_anything_else_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match=f"must be a whole number or none, got '{text}'"):
        count_or_none(text)
