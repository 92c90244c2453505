"""IAM for tests: the roles of the template, and AWS calls as IAM sees them.

An emulator's evaluator decides. The emulator itself enforces policies, but for `dynamodb:LeadingKeys` and the
`dynamodb:Attributes` of a write; a request here has both.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ministack.core.iam_evaluator import (  # type: ignore[import-untyped]
    EvalContext,
    evaluate,
    parse_policy_document,
)

from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.dynamodb.schema import KEY
from tests.template.test_template import statements

ACCOUNT: Final = "123456789012"
REGION: Final = "eu-west-1"
TABLE: Final = "QueueTable"
ATTACHED_TABLE: Final = "Shipments"
ATTACHED_KEY: Final = TableKey(KeyPart("customer"), KeyPart("number", "N"))
HASH_KEYS: Final = {TABLE: KEY, ATTACHED_TABLE: ATTACHED_KEY.hash.name}
KILL_SWITCH: Final = "/freshq/stack/kill-switch"
DELIVERY_STREAM: Final = "Archive"
# The operations of a transaction are checked one by one.
IN_TRANSACTION: Final = {"ConditionCheck": "ConditionCheckItem", "Put": "PutItem", "Update": "UpdateItem"}


@dataclass(frozen=True)
class Request:
    """One action on one resource, with what conditions compare.

    Attributes:
        action: The action, such as dynamodb:GetItem.
        resource: An ARN.
        leading_keys: Hash keys of the items.
        attributes: Attributes that the request names.
    """

    action: str
    resource: str
    leading_keys: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


def table_arn(table: str) -> str:
    """Return the ARN of a table."""
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table}"


def topic_arn(name: str) -> str:
    """Return the ARN of a topic of the template."""
    return f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"


SUBSTITUTES: Final = {
    "${QueueTable.Arn}": table_arn(TABLE),
    "${AttachTable}": ATTACHED_TABLE,
    "${KillSwitch}": KILL_SWITCH,
    "${AWS::Partition}": "aws",
    "${AWS::Region}": REGION,
    "${AWS::AccountId}": ACCOUNT,
}
PARAMETERS: Final = {"AttachKey": "customer", "AttachRangeKey": "number"}


def resolved(value: Any) -> Any:
    """Return a part of the template as it is deployed: with ARNs in place of references."""
    if isinstance(value, list):
        return [resolved(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"Fn::GetAtt": ["QueueTable", "Arn"]}:
            text = table_arn(TABLE)
        case {"Ref": name} if name in PARAMETERS:
            text = PARAMETERS[name]
        case {"Fn::GetAtt": [name, _]} | {"Ref": name}:
            text = topic_arn(name)  # of whatever service: only calls and policies must agree
        case {"Fn::Sub": text}:
            for variable, substitute in SUBSTITUTES.items():
                text = text.replace(variable, substitute)
        case _:
            return {name: resolved(inner) for name, inner in value.items()}
    return text


def role(function: str, *, attached: bool = False) -> list[dict[str, Any]]:
    """Return the statements of a function's role, with a table of the stack's own or an attached one."""
    return [resolved(statement) for statement in statements(function, attached=attached)]


def allows(of_role: Iterable[Mapping[str, Any]], request: Request) -> bool:
    """Return whether statements allow a request."""
    context = EvalContext(
        principal_arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/role/session",
        principal_type="AssumedRole",
        principal_account=ACCOUNT,
        action=request.action,
        resource_arn=request.resource,
        region=REGION,
        service_context={
            name: sorted(values)
            for name, values in (
                ("dynamodb:leadingkeys", request.leading_keys),
                ("dynamodb:attributes", request.attributes),
            )
            if values
        },
    )
    policy = parse_policy_document({"Version": "2012-10-17", "Statement": list(of_role)})
    return bool(evaluate(context, [policy]).decision == "Allow")


def requests_of(service: str, operation: str, body: Any) -> list[Request]:
    """Return what IAM checks for a call, from the body of its HTTP request."""
    fields = body if isinstance(body, dict) else json.loads(body)
    if service == "sns":
        return [Request("sns:Publish", fields["TopicArn"])]
    if service == "ssm":
        name = fields["Name"]
        return [Request("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter{name}")]
    if service == "firehose":
        return [Request("firehose:PutRecordBatch", resolved({"Fn::GetAtt": ["ArchiveDelivery", "Arn"]}))]
    assert service == "dynamodb", service
    if operation == "TransactWriteItems":
        return [
            _on_table(IN_TRANSACTION[kind], part)
            for item in fields["TransactItems"]
            for kind, part in item.items()
        ]
    if operation == "BatchExecuteStatement":
        return [_of_statement(**statement) for statement in fields["Statements"]]
    return [_on_table(operation, fields)]


def _of_statement(Statement: str, Parameters: Sequence[Mapping[str, str]], **_: Any) -> Request:
    """Return what IAM checks for a statement of PartiQL."""
    found = re.match(r'(INSERT INTO|UPDATE) "([^"]+)" ', Statement)
    assert found is not None, Statement
    assert found[2] == TABLE
    # Of an INSERT the attributes; of an UPDATE what is set, and what the condition compares.
    named = r"'(\w+)': \?" if found[1] == "INSERT INTO" else r'"(\w+)" (?:=|>|<=|<>|<|\+) \?'
    names = re.findall(named, Statement)
    assert len(names) == len(Parameters), Statement
    action = "PartiQLInsert" if found[1] == "INSERT INTO" else "PartiQLUpdate"
    (key,) = (value["S"] for name, value in zip(names, Parameters, strict=True) if name == KEY)
    attributes = frozenset(re.findall(r"[\"'](\w+)[\"']", Statement)) - {TABLE}
    return Request(f"dynamodb:{action}", table_arn(TABLE), frozenset({key}), attributes)


def _on_table(operation: str, fields: Mapping[str, Any]) -> Request:
    index = f"/index/{fields['IndexName']}" if "IndexName" in fields else ""
    names = fields.get("ExpressionAttributeNames", {}).values()
    attributes = {*names, *fields.get("Key", {}), *fields.get("Item", {})}
    (table,) = [fields["TableName"]] if "TableName" in fields else fields["RequestItems"]
    keys = frozenset(_leading_keys(fields, HASH_KEYS[table]))
    return Request(f"dynamodb:{operation}", table_arn(table) + index, keys, frozenset(attributes))


def _leading_keys(fields: Mapping[str, Any], hash_key: str) -> Iterable[str]:
    """Yield the hash keys that a request names; a query of an index names the index's."""
    if "IndexName" in fields:
        # Every query compares the index's hash key first.
        yield fields["ExpressionAttributeValues"][":shard"]["S"]
        return
    for key in (fields.get("Key"), fields.get("Item")):
        if key:
            yield key[hash_key]["S"]
    for of_table in fields.get("RequestItems", {}).values():
        keys = (
            of_table["Keys"]
            if "Keys" in of_table
            else [
                write.get("PutRequest", {}).get("Item") or write["DeleteRequest"]["Key"] for write in of_table
            ]
        )
        yield from (key[hash_key]["S"] for key in keys)
