"""Commands of the AWS CLI, which is not installed: calls of boto3 with the same options."""

import json
from typing import Any

from botocore import xform_name


def arguments(client: Any, operation: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of a call for the options of the AWS CLI."""
    members = client.meta.service_model.operation_model(operation).input_shape.members
    names = {f"--{xform_name(name, '-')}": name for name in members}
    found: dict[str, Any] = {}
    last = ""
    for word in words:
        if word.startswith("--"):
            last = names[word]
            found[last] = True  # a flag, unless a value follows
        elif last:
            found[last], last = typed(members[last].type_name, word), ""
    return found


def typed(kind: str, word: str) -> Any:
    """Return an option's text as its kind of value: policies are texts that look like objects."""
    if kind == "integer":
        return int(word)
    if kind == "list" and not word.startswith("["):
        return word.split()
    return json.loads(word) if kind in ("structure", "list", "map") else word


def call(client: Any, operation: str, *words: str) -> Any:
    """Call the operation of a command, such as `list-backups`; return the answer."""
    method = operation.replace("-", "_")
    names = {name.lower(): name for name in client.meta.method_to_api_mapping}
    method = names.get(method.lower(), method)
    given = arguments(client, client.meta.method_to_api_mapping[method], words)
    return getattr(client, method)(**given)
