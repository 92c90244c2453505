"""The options by name, as type checkers see them, are the options that are checked."""

from typing import Any

import pytest
from pydantic import BaseModel

from freshq.model.options import QueueConfig, QueueOptions
from freshq.worker.options import WorkerConfig, WorkerOptions


@pytest.mark.parametrize(("typed", "checked"), [(QueueOptions, QueueConfig), (WorkerOptions, WorkerConfig)])
def test_type_checkers_know_every_option(typed: Any, checked: type[BaseModel]) -> None:
    assert typed.__annotations__.keys() == checked.model_fields.keys()


@pytest.mark.parametrize("checked", [QueueConfig, WorkerConfig])
def test_every_option_has_a_help_text(checked: type[BaseModel]) -> None:
    assert [name for name, option in checked.model_fields.items() if not option.description] == []
