"""Caches of constants that boto3 and moto would read, list or make again for each call or test."""

from functools import cache
from typing import Any

from botocore import useragent
from botocore.loaders import JSONFileLoader, Loader
from moto.core import models

_load_file = JSONFileLoader.load_file
_list_services = Loader.list_available_services


@cache
def _file(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)


@cache
def _services(search_paths: tuple[str, ...], kind: str) -> list[str]:
    loader = Loader(include_default_search_paths=False)
    loader.search_paths.extend(search_paths)
    services: list[str] = _list_services(loader, kind)
    return services


def read_models_once() -> None:
    """Read the model of each service once: moto starts a new session for each test, and that has none."""
    setattr(JSONFileLoader, "load_file", lambda _loader, path: _file(path))  # noqa: B010 - mypy allows this
    listed = lambda loader, type_name: _services(tuple(loader.search_paths), type_name)  # noqa: E731 - as above
    setattr(Loader, "list_available_services", listed)  # noqa: B010 - mypy allows this


def clean_names_once() -> None:
    """Clean each part of the user agent once: that is a twelfth of the processor time of a client's call."""
    cleaned = cache(useragent.sanitize_user_agent_string_component)
    setattr(useragent, "sanitize_user_agent_string_component", cleaned)  # noqa: B010 - mypy allows this


def answer_boto_only() -> None:
    """Let moto's mock register nothing for the package requests: that is most of the time of its start."""
    setattr(models, "RESPONSES_METHODS", [])  # noqa: B010 - mypy allows this
