"""The JSON of each command is what the reference says."""

import json

from jsonschema import Draft202012Validator
from local.reference import JSON_PAGE, SCHEMAS, answers, commands_with_json, described_command, json_page


def test_answers_fit_the_schemas_of_their_commands() -> None:
    """After a new name: python -m local.reference json."""
    described = json.loads(SCHEMAS.read_text("utf-8"))
    printed = answers()
    assert printed.keys() == described["commands"].keys()
    for name, values in printed.items():
        validator = Draft202012Validator(described["commands"][name] | {"$defs": described["$defs"]})
        for value in values:
            assert [f"{name}: {error.message}" for error in validator.iter_errors(value)] == []


def test_the_page_shows_the_schemas() -> None:
    described = json.loads(SCHEMAS.read_text("utf-8"))
    assert JSON_PAGE.read_text("utf-8") == json_page(described)


def test_every_command_that_prints_json_has_a_schema() -> None:
    """For a new command: a line in local/reference.py."""
    described = json.loads(SCHEMAS.read_text("utf-8"))
    assert commands_with_json() == {described_command(name) for name in described["commands"]}
