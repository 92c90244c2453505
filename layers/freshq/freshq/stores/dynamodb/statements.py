"""Conditional writes as PartiQL statements: one call carries out several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb.names import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.stores.dynamodb.names import Item

_CLAUSE: Final = re.compile(r"(SET|REMOVE|ADD) (.*?)(?= (?:SET|REMOVE|ADD) |$)")
_MARK: Final = re.compile(r"attribute_not_exists\(#(?P<missing>\w+)\)|#(?P<name>\w+)|(?P<value>:\w+)")


def update_statement(table: str, arguments: Item) -> Item:
    """Return the statement that does what an UpdateItem with these arguments does, and returns the item.

    Both forms come from one set of expressions, so that they cannot differ. PartiQL has no ADD: the attribute
    that is added to must exist.

    Args:
        table: Name of the table.
        arguments: Arguments of a conditional UpdateItem, with a `#` in front of each name.
    """
    actions = [
        _action(keyword, action)
        for keyword, clause in _CLAUSE.findall(arguments["UpdateExpression"])
        for action in clause.split(", ")
    ]
    values = arguments["ExpressionAttributeValues"] | {":ownKey": arguments["Key"][KEY]}
    condition = f"#{KEY} = :ownKey AND {arguments['ConditionExpression']}"
    text, parameters = _filled_in(f"{' '.join(actions)} WHERE {condition}", values)
    return _statement(f'UPDATE "{table}" {text} RETURNING ALL NEW *', parameters)


def insert_statement(table: str, item: Item) -> Item:
    """Return the statement that adds an item if its id is free."""
    attributes = ", ".join(f"'{name}': ?" for name in item)
    return _statement(f'INSERT INTO "{table}" VALUE {{{attributes}}}', list(item.values()))


def _statement(text: str, parameters: list[Item]) -> Item:
    return {"Statement": text, "Parameters": parameters, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _action(keyword: str, action: str) -> str:
    if keyword == "ADD":
        name, value = action.split()
        return f"SET {name} = {name} + {value}"
    return f"{keyword} {action}"


def _filled_in(expression: str, values: Mapping[str, Item]) -> tuple[str, list[Item]]:
    """Return an expression with PartiQL's names and question marks, and the values of these in order."""
    parameters: list[Item] = []

    def fill_in(mark: re.Match[str]) -> str:
        if mark["missing"]:
            return f'"{mark["missing"]}" IS MISSING'
        if mark["name"]:
            return f'"{mark["name"]}"'
        parameters.append(values[mark["value"]])
        return "?"

    return _MARK.sub(fill_in, expression), parameters
