"""Loads the handlers as Lambda does, with a context."""

import importlib.util
import json
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
EVENTS = PROJECT / "events"


@dataclass
class Context:
    """The context of an invocation, as Lambda passes it."""

    function_name: str = "function"
    memory_limit_in_mb: int = 256
    invoked_function_arn: str = "arn:aws:lambda:eu-west-1:123456789012:function:function"
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    remaining_seconds: float = 120.0

    def get_remaining_time_in_millis(self) -> int:
        return int(self.remaining_seconds * 1000)


def load_function(name: str) -> ModuleType:
    """Return a new copy of a function's module, as after a cold start."""
    module_name = f"function_{name}"
    spec = importlib.util.spec_from_file_location(module_name, PROJECT / "functions" / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up by its name
    spec.loader.exec_module(module)
    return module


def load_event(name: str) -> dict[str, Any]:
    """Return an event of events/."""
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text("utf-8"))
    return event
