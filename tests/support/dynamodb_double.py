"""DynamoDB within this process: tables, conditions, batches, transactions, and indexes that may lag.

It knows the calls, expressions and statements that freshq sends, and refuses all others.
"""

from __future__ import annotations

import re
import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from botocore.exceptions import ClientError
from botocore.hooks import HierarchicalEmitter

Item: TypeAlias = dict[str, Any]
Term: TypeAlias = Callable[["Scope"], Any]

MAX_ITEM_BYTES: Final = 400 * 1024
MAX_PAGE_BYTES: Final = 1024 * 1024
TOO_LARGE: Final = "Item size has exceeded the maximum allowed size"
WRONG_TYPE: Final = "An operand in the update expression has an incorrect data type"
_TOKEN: Final = re.compile(r'\s*("[^"]+"|[#:]?\w+|<>|<=|>=|[=<>(),+?])')
_FUNCTIONS: Final = (
    "attribute_exists",
    "attribute_not_exists",
    "attribute_type",
    "begins_with",
    "contains",
    "size",
)
# Arguments that change no answer.
_IGNORED: Final = frozenset({"ReturnConsumedCapacity", "ConsistentRead", "ProjectionExpression"})


def refusal(code: str, message: str = "", **more: Any) -> ClientError:
    """Return an error as the SDK raises it."""
    response: Any = {"Error": {"Code": code, "Message": message or code}, **more}
    return ClientError(response, "Call")


@dataclass(frozen=True, slots=True)
class Scope:
    """The input of an expression."""

    item: Item
    names: Mapping[str, str]
    values: Mapping[str, Any]


@lru_cache(maxsize=100_000)
def _number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise refusal("ValidationException", f"{text!r} cannot be converted to a numeric value")
    return number


def plain(value: Item) -> Any:
    """Return a value that compares as DynamoDB compares values of one type."""
    ((kind, inner),) = value.items()
    if kind == "N":
        return _number(inner)
    if kind in ("SS", "BS"):
        return frozenset(inner)
    if kind == "NS":
        return frozenset(map(_number, inner))
    return inner.encode() if kind == "S" else bytes(inner) if kind == "B" else repr(inner)


def _compared(sign: str, left: Item | None, right: Item | None) -> bool:
    if left is None or right is None or left.keys() != right.keys():
        return sign == "<>"
    one, other = plain(left), plain(right)
    if sign in ("=", "<>"):
        return (one == other) is (sign == "=")
    return bool({"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign])


def _size(value: Item | None) -> Item | None:
    if value is None:
        return None
    ((kind, inner),) = value.items()
    return {"N": str(len(inner.encode() if kind == "S" else inner))}


class _Parser:
    """Compiles an expression of DynamoDB, or a condition of PartiQL."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise NotImplementedError(text)
        self._at = self._marks = 0

    def next(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def skip(self, *tokens: str) -> None:
        for token in tokens:
            if (found := self.next()) != token:
                msg = f"{found!r} instead of {token!r} in {self._tokens}"
                raise NotImplementedError(msg)

    def has(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._at += 1
        return True

    def condition(self) -> Term:
        terms = [self._all_of()]
        while self.has("OR"):
            terms.append(self._all_of())
        return terms[0] if len(terms) == 1 else lambda scope: any(term(scope) for term in terms)

    def _all_of(self) -> Term:
        terms = [self._one()]
        while self.has("AND"):
            terms.append(self._one())
        return terms[0] if len(terms) == 1 else lambda scope: all(term(scope) for term in terms)

    def _one(self) -> Term:  # noqa: PLR0911 - one for each form
        if self.has("NOT"):
            inner = self._one()
            return lambda scope: not inner(scope)
        if self.has("("):
            inner = self.condition()
            self.skip(")")
            return inner
        if self.peek() in _FUNCTIONS and self.peek() != "size":
            return self._function(self.next())
        left = self.operand()
        sign = self.next()
        if sign == "IS":
            self.skip("MISSING")
            return lambda scope: left(scope) is None
        if sign == "IN":
            self.skip("(")
            choices = [self.operand()]
            while self.has(","):
                choices.append(self.operand())
            self.skip(")")
            return lambda scope: any(_compared("=", left(scope), choice(scope)) for choice in choices)
        right = self.operand()
        if sign == "BETWEEN":
            self.skip("AND")
            last = self.operand()
            return lambda scope: (
                _compared(">=", left(scope), right(scope)) and _compared("<=", left(scope), last(scope))
            )
        if sign not in ("=", "<>", "<", "<=", ">", ">="):
            raise NotImplementedError(sign)
        return lambda scope: _compared(sign, left(scope), right(scope))

    def _function(self, name: str) -> Term:
        self.skip("(")
        path = self.operand()
        if name in ("attribute_exists", "attribute_not_exists"):
            self.skip(")")
            return lambda scope: (path(scope) is None) is (name == "attribute_not_exists")
        self.skip(",")
        other = self.operand()
        self.skip(")")
        if name == "attribute_type":
            return lambda scope: other(scope)["S"] in (path(scope) or {})
        if name == "contains":
            return lambda scope: other(scope)["S"] in str((path(scope) or {}).get("S", ""))
        return lambda scope: str((path(scope) or {}).get("S", "")).startswith(other(scope)["S"])

    def name(self) -> Callable[[Scope], str]:
        token = self.next()
        if token.startswith("#"):
            return lambda scope: scope.names[token]
        bare = token.strip('"')
        return lambda _scope: bare

    def operand(self) -> Term:
        token = self.peek()
        if token.startswith(":"):
            self.next()
            return lambda scope: scope.values[token]
        if self.has("?"):
            mark, self._marks = f"?{self._marks}", self._marks + 1
            return lambda scope: scope.values[mark]
        if self.has("size"):
            self.skip("(")
            inner = self.operand()
            self.skip(")")
            return lambda scope: _size(inner(scope))
        name = self.name()
        return lambda scope: scope.item.get(name(scope))

    def update(self) -> list[Callable[[Scope, Item], None]]:
        actions: list[Callable[[Scope, Item], None]] = []
        while (keyword := self.peek()) in ("SET", "REMOVE", "ADD", "DELETE"):
            self.next()
            actions.append(getattr(self, f"_{keyword.lower()}")())
            while self.has(","):
                actions.append(getattr(self, f"_{keyword.lower()}")())
        return actions

    def _set(self) -> Callable[[Scope, Item], None]:
        name = self.name()
        self.skip("=")
        value = self.operand()
        added = self.operand() if self.has("+") else None

        def act(scope: Scope, new: Item) -> None:
            found = value(scope)
            if added is not None:
                found = _sum(found, added(scope))
            if found is None:
                raise refusal("ValidationException", "The provided expression refers to a missing attribute")
            new[name(scope)] = found

        return act

    def _remove(self) -> Callable[[Scope, Item], None]:
        name = self.name()
        return lambda scope, new: (new.pop(name(scope), None), None)[1]

    def _add(self) -> Callable[[Scope, Item], None]:
        name, value = self.name(), self.operand()

        def act(scope: Scope, new: Item) -> None:
            new[name(scope)] = _sum(scope.item.get(name(scope)), value(scope))

        return act

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._tokens)


def _sum(one: Item | None, other: Item) -> Item:
    if one is None:
        return other
    if one.keys() != other.keys() or not one.keys() <= {"N", "NS", "SS"}:
        raise refusal("ValidationException", WRONG_TYPE)
    ((kind, value),) = one.items()
    if kind == "N":
        return {"N": str(_number(value) + _number(other["N"]))}
    return {kind: sorted({*value, *other[kind]})}


@lru_cache(maxsize=4096)
def condition_of(text: str) -> Term:
    """Return a compiled condition."""
    parser = _Parser(text)
    found = parser.condition()
    if not parser.is_over:
        raise NotImplementedError(text)
    return found


@lru_cache(maxsize=4096)
def update_of(text: str) -> list[Callable[[Scope, Item], None]]:
    """Return the compiled actions of an update."""
    parser = _Parser(text)
    found = parser.update()
    if not parser.is_over:
        raise NotImplementedError(text)
    return found


_UPDATE: Final = re.compile(r'UPDATE "(?P<table>[^"]+)" (?P<rest>.*?)(?: RETURNING ALL NEW \*)?', re.DOTALL)
_INSERT: Final = re.compile(r'INSERT INTO "(?P<table>[^"]+)" VALUE \{(?P<names>.*)\}', re.DOTALL)


@lru_cache(maxsize=4096)
def _updating(text: str) -> tuple[str, list[Callable[[Scope, Item], None]], Term]:
    match = _UPDATE.fullmatch(text)
    if match is None:
        raise NotImplementedError(text)
    parser = _Parser(match["rest"])
    actions = parser.update()
    parser.skip("WHERE")
    return match["table"], actions, parser.condition()


def size_bytes(value: Any) -> int:
    """Return about how large a value is in a table."""
    if isinstance(value, dict):
        return sum(len(name.encode()) + size_bytes(inner) for name, inner in value.items())
    if isinstance(value, list | set | tuple):
        return sum(1 + size_bytes(inner) for inner in value)
    return len(value.encode() if isinstance(value, str) else value) if isinstance(value, str | bytes) else 1


def item_bytes(item: Item) -> int:
    """Return about how large an item is."""
    return sum(len(name.encode()) + sum(map(size_bytes, value.values())) for name, value in item.items())


@dataclass
class Index:
    """A view of a table by other keys. Writes of an item become visible in order, each after a delay."""

    hash_key: str
    range_key: str | None
    attributes: frozenset[str] | None
    entries: defaultdict[Any, list[tuple[Any, Any]]] = field(default_factory=lambda: defaultdict(list))
    shown: dict[Any, tuple[Any, Any, Item]] = field(default_factory=dict)
    pending: dict[Any, list[tuple[float, Item | None]]] = field(default_factory=dict)

    def write(self, key: Any, item: Item | None, at: float, now: float) -> None:
        queued = self.pending.get(key)
        if queued:
            at = max(at, queued[-1][0])
        if at <= now and not queued:
            self._show(key, item)
        else:
            self.pending.setdefault(key, []).append((at, item))

    def catch_up(self, now: float) -> None:
        for key, queued in [*self.pending.items()]:
            while queued and queued[0][0] <= now:
                self._show(key, queued.pop(0)[1])
            if not queued:
                del self.pending[key]

    def _show(self, key: Any, item: Item | None) -> None:
        if key in self.shown:
            partition, place, _old = self.shown.pop(key)
            self.entries[partition].remove(place)
        if item is None or self.hash_key not in item or (self.range_key and self.range_key not in item):
            return
        partition = plain(item[self.hash_key])
        place = (plain(item[self.range_key]) if self.range_key else b"", key)
        insort(self.entries[partition], place)
        if self.attributes is not None:
            item = {name: value for name, value in item.items() if name in self.attributes}
        self.shown[key] = (partition, place, item)


class Table:
    """One table."""

    def __init__(self, definition: Item) -> None:
        self.definition = dict(definition)
        self.keys = [part["AttributeName"] for part in definition["KeySchema"]]
        self.types = {
            each["AttributeName"]: each["AttributeType"] for each in definition["AttributeDefinitions"]
        }
        self.items: dict[Any, Item] = {}
        self.ttl: Item = {"TimeToLiveStatus": "DISABLED"}
        self.backups = "DISABLED"
        self.primary = Index(self.keys[0], self.keys[1] if len(self.keys) > 1 else None, None)
        self.indexes = {
            each["IndexName"]: self._index(each) for each in definition.get("GlobalSecondaryIndexes", ())
        }

    def _index(self, definition: Item) -> Index:
        keys = [part["AttributeName"] for part in definition["KeySchema"]]
        projection = definition["Projection"]
        if projection["ProjectionType"] == "ALL":
            kept = None
        else:
            kept = frozenset([*self.keys, *keys, *projection.get("NonKeyAttributes", ())])
        return Index(keys[0], keys[1] if len(keys) > 1 else None, kept)

    def change(self, arguments: Item, now: float) -> None:
        """Change indexes and settings; indexes are filled at once."""
        self.types |= {
            each["AttributeName"]: each["AttributeType"] for each in arguments.get("AttributeDefinitions", ())
        }
        listed = {each["IndexName"]: each for each in self.definition.get("GlobalSecondaryIndexes", ())}
        for update in arguments.get("GlobalSecondaryIndexUpdates", ()):
            ((kind, index),) = update.items()
            name = index["IndexName"]
            if kind == "Delete":
                del listed[name], self.indexes[name]
                continue
            listed[name] = listed.get(name, {}) | index
            if kind == "Create":
                self.indexes[name] = self._index(index)
                for key, item in self.items.items():
                    self.indexes[name].write(key, item, now, now)
        names = ("BillingMode", "ProvisionedThroughput", "StreamSpecification", "DeletionProtectionEnabled")
        self.definition |= {name: arguments[name] for name in names if name in arguments}
        self.definition["AttributeDefinitions"] = [
            {"AttributeName": name, "AttributeType": kind} for name, kind in self.types.items()
        ]
        self.definition["GlobalSecondaryIndexes"] = [*listed.values()]

    def key_of(self, item: Item) -> Any:
        if any(name not in item for name in self.keys):
            raise refusal("ValidationException", "The provided key element does not match the schema")
        return tuple(plain(item[name]) for name in self.keys)

    def check(self, item: Item) -> None:
        """Raise as DynamoDB does for an item that no table can have."""
        if item_bytes(item) > MAX_ITEM_BYTES:
            raise refusal("ValidationException", TOO_LARGE)
        for name, value in item.items():
            ((kind, inner),) = value.items()
            if name in self.types and (kind != self.types[name] or inner == ""):
                raise refusal("ValidationException", f"Type mismatch for key {name}")
            if kind in ("SS", "NS", "BS") and not inner:
                raise refusal("ValidationException", "An number set  may not be empty")


@dataclass
class Writing:
    """The sender of a call, its faults, and the time at which indexes show it."""

    lag_seconds: float = 0.0
    left: int = 0


class Tables:
    """The tables of an account, which clients share.

    Attributes:
        now: Returns the time in seconds.
        seen: Called with each change of an item: its table, the item before and after.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seen: Callable[[str, Item | None, Item | None], None] = lambda _table, _before, _after: None
        self.by_name: dict[str, Table] = {}
        self.tokens: set[str] = set()
        self.lock = threading.RLock()

    def table(self, name: str) -> Table:
        try:
            return self.by_name[name]
        except KeyError:
            raise refusal("ResourceNotFoundException", "Requested resource not found") from None

    def write(self, name: str, key: Any, item: Item | None, lag_seconds: float) -> None:
        table, now = self.table(name), self.now()
        before = table.items.get(key)
        self.seen(name, before, item)
        if item is None:
            table.items.pop(key, None)
        else:
            table.check(item)
            table.items[key] = item
        table.primary.write(key, item, now, now)
        for index in table.indexes.values():
            index.write(key, item, now + lag_seconds, now)


class DynamoDBDouble:
    """A client of `Tables`.

    Attributes:
        deliver: Called with the name of a call and the first key that it names, whether it writes, and a
            function that carries it out with `Writing`; returns its answer, or fails as a network fails.
    """

    def __init__(self, tables: Tables, deliver: Callable[..., Any] | None = None) -> None:
        self._tables = tables
        self.deliver = deliver or (lambda _name, _writes, made: made(Writing()))
        self.exceptions = SimpleNamespace(
            ResourceInUseException=_of_code("ResourceInUseException"),
            ResourceNotFoundException=_of_code("ResourceNotFoundException"),
        )
        self._events = HierarchicalEmitter()
        self.meta = SimpleNamespace(
            endpoint_url=f"double:{id(tables)}", events=self._events, region_name="here"
        )

    def __getattr__(self, name: str) -> Any:
        try:
            method = getattr(type(self), f"_call_{name}")
        except AttributeError:
            raise AttributeError(name) from None
        writes = name.startswith(("put", "update_i", "delete_i", "batch_write", "batch_exec", "transact"))
        model = SimpleNamespace(name="".join(part.capitalize() for part in name.split("_")))

        def call(**arguments: Any) -> Any:
            self._events.emit(f"before-call.dynamodb.{model.name}", model=model, params=arguments)
            sent = {key: value for key, value in arguments.items() if key not in _IGNORED}

            def carry_out(writing: Writing) -> Any:
                with self._tables.lock:
                    return method(self, sent, writing)

            answer = self.deliver(f"{name} {_first_key(sent)}", writes, carry_out)
            self._events.emit(f"after-call.dynamodb.{model.name}", model=model, parsed=answer)
            return answer

        return call

    # Tables.

    def _call_create_table(self, arguments: Item, _writing: Writing) -> Item:
        name = arguments["TableName"]
        if name in self._tables.by_name:
            raise self.exceptions.ResourceInUseException(
                {"Error": {"Code": "ResourceInUseException", "Message": f"Table already exists: {name}"}},
                "Call",
            )
        self._tables.by_name[name] = Table(arguments)
        return self._call_describe_table(arguments, _writing)

    def _call_describe_table(self, arguments: Item, _writing: Writing) -> Item:
        definition = dict(self._tables.table(arguments["TableName"]).definition)
        definition |= {"TableStatus": "ACTIVE", "TableSizeBytes": 0, "ItemCount": 0}
        definition["BillingModeSummary"] = {"BillingMode": definition.get("BillingMode", "PROVISIONED")}
        if indexes := definition.get("GlobalSecondaryIndexes"):
            definition["GlobalSecondaryIndexes"] = [index | {"IndexStatus": "ACTIVE"} for index in indexes]
        if definition.get("StreamSpecification", {}).get("StreamEnabled"):
            definition["LatestStreamArn"] = f"arn:aws:dynamodb:here:1:table/{arguments['TableName']}/stream/1"
        return {"Table": definition}

    def _call_list_tables(self, _arguments: Item, _writing: Writing) -> Item:
        return {"TableNames": sorted(self._tables.by_name)}

    def _call_update_table(self, arguments: Item, writing: Writing) -> Item:
        self._tables.table(arguments["TableName"]).change(arguments, self._tables.now())
        return self._call_describe_table(arguments, writing)

    def _call_delete_table(self, arguments: Item, _writing: Writing) -> Item:
        self._tables.table(arguments["TableName"])
        del self._tables.by_name[arguments["TableName"]]
        return {}

    def _call_describe_time_to_live(self, arguments: Item, _writing: Writing) -> Item:
        return {"TimeToLiveDescription": self._tables.table(arguments["TableName"]).ttl}

    def _call_update_time_to_live(self, arguments: Item, _writing: Writing) -> Item:
        found = arguments["TimeToLiveSpecification"]
        self._tables.table(arguments["TableName"]).ttl = {
            "TimeToLiveStatus": "ENABLED" if found["Enabled"] else "DISABLED",
            "AttributeName": found["AttributeName"],
        }
        return {}

    def _call_describe_continuous_backups(self, arguments: Item, _writing: Writing) -> Item:
        recovery = {"PointInTimeRecoveryStatus": self._tables.table(arguments["TableName"]).backups}
        return {"ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": recovery}}

    def _call_update_continuous_backups(self, arguments: Item, writing: Writing) -> Item:
        is_on = arguments["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
        self._tables.table(arguments["TableName"]).backups = "ENABLED" if is_on else "DISABLED"
        return self._call_describe_continuous_backups(arguments, writing)

    def _call_list_backups(self, _arguments: Item, _writing: Writing) -> Item:
        return {"BackupSummaries": []}

    def get_waiter(self, _name: str) -> Any:
        """Return a waiter; a table is ready immediately."""
        return SimpleNamespace(wait=lambda **_: None)

    def get_paginator(self, name: str) -> Any:
        """Return a paginator of scans or queries."""
        return SimpleNamespace(paginate=partial(self._pages, getattr(self, name)))

    @staticmethod
    def _pages(call: Callable[..., Item], **arguments: Any) -> Iterator[Item]:
        while True:
            page = call(**arguments)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    # Items.

    def _call_get_item(self, arguments: Item, _writing: Writing) -> Item:
        table = self._tables.table(arguments["TableName"])
        item = table.items.get(table.key_of(arguments["Key"]))
        return {} if item is None else {"Item": dict(item)}

    def _checked(self, arguments: Item, key: Any) -> Item | None:
        """Return the item of a key if the condition of a write holds."""
        item = self._tables.table(arguments["TableName"]).items.get(key)
        if (text := arguments.get("ConditionExpression")) is not None and not condition_of(text)(
            _scope(item or {}, arguments)
        ):
            more = {} if item is None else {"Item": dict(item)}
            if "ReturnValuesOnConditionCheckFailure" not in arguments:
                more = {}
            raise refusal("ConditionalCheckFailedException", "The conditional request failed", **more)
        return item

    def _call_put_item(self, arguments: Item, writing: Writing) -> Item:
        table = self._tables.table(arguments["TableName"])
        key = table.key_of(arguments["Item"])
        self._checked(arguments, key)
        table.check(arguments["Item"])
        self._tables.write(arguments["TableName"], key, arguments["Item"], writing.lag_seconds)
        return {}

    def _call_delete_item(self, arguments: Item, writing: Writing) -> Item:
        key = self._tables.table(arguments["TableName"]).key_of(arguments["Key"])
        if self._checked(arguments, key) is not None:
            self._tables.write(arguments["TableName"], key, None, writing.lag_seconds)
        return {}

    def _call_update_item(self, arguments: Item, writing: Writing) -> Item:
        table = self._tables.table(arguments["TableName"])
        key = table.key_of(arguments["Key"])
        item = self._checked(arguments, key) or dict(arguments["Key"])
        new = self._updated(table, item, update_of(arguments["UpdateExpression"]), _scope(item, arguments))
        self._tables.write(arguments["TableName"], key, new, writing.lag_seconds)
        return {"Attributes": dict(new)} if arguments.get("ReturnValues") == "ALL_NEW" else {}

    @staticmethod
    def _updated(
        table: Table, item: Item, actions: Iterable[Callable[[Scope, Item], None]], scope: Scope
    ) -> Item:
        new = dict(item)
        for action in actions:
            action(scope, new)
        if item_bytes(new) > MAX_ITEM_BYTES:
            message = "Item size to update has exceeded the maximum allowed size"
            raise refusal("ValidationException", message)
        table.check(new)
        return new

    # Several items.

    def _call_batch_get_item(self, arguments: Item, writing: Writing) -> Item:
        ((name, wanted),) = arguments["RequestItems"].items()
        table, keys = self._tables.table(name), wanted["Keys"]
        left = keys[len(keys) - writing.left :] if 0 < writing.left < len(keys) else []
        found = (table.items.get(table.key_of(key)) for key in keys[: len(keys) - len(left)])
        items = [dict(item) for item in found if item is not None]
        unprocessed = {name: {"Keys": left, "ConsistentRead": True}} if left else {}
        return {"Responses": {name: items}, "UnprocessedKeys": unprocessed}

    def _call_batch_write_item(self, arguments: Item, writing: Writing) -> Item:
        ((name, requests),) = arguments["RequestItems"].items()
        table = self._tables.table(name)
        left = requests[len(requests) - writing.left :] if 0 < writing.left < len(requests) else []
        for request in requests[: len(requests) - len(left)]:
            if "PutRequest" in request:
                item = request["PutRequest"]["Item"]
                table.check(item)
                self._tables.write(name, table.key_of(item), item, writing.lag_seconds)
            else:
                key = table.key_of(request["DeleteRequest"]["Key"])
                if key in table.items:
                    self._tables.write(name, key, None, writing.lag_seconds)
        return {"UnprocessedItems": {name: left} if left else {}}

    def _call_batch_execute_statement(self, arguments: Item, writing: Writing) -> Item:
        statements = arguments["Statements"]
        left = writing.left if writing.left < len(statements) else 0
        return {
            "Responses": [
                {"Error": {"Code": "TransactionConflict", "Message": "Transaction is ongoing for the item"}}
                if place >= len(statements) - left
                else self._statement(statement, writing)
                for place, statement in enumerate(statements)
            ]
        }

    def _statement(self, statement: Item, writing: Writing) -> Item:
        codes = {
            "ConditionalCheckFailedException": "ConditionalCheckFailed",
            "ValidationException": "ValidationError",
        }
        try:
            if statement["Statement"].startswith("INSERT"):
                return self._insert(statement, writing)
            return self._update(statement, writing)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            return {"Error": {**error.response["Error"], "Code": codes.get(code, code)} | _item_in(error)}

    def _insert(self, statement: Item, writing: Writing) -> Item:
        match = _INSERT.fullmatch(statement["Statement"])
        if match is None:
            raise NotImplementedError(statement["Statement"])
        names = re.findall(r"'(\w+)': \?", match["names"])
        item = dict(zip(names, statement["Parameters"], strict=True))
        table = self._tables.table(match["table"])
        key = table.key_of(item)
        if key in table.items:
            raise refusal("DuplicateItem", "Duplicate primary key exists in table")
        table.check(item)
        self._tables.write(match["table"], key, item, writing.lag_seconds)
        return {"TableName": match["table"]}

    def _update(self, statement: Item, writing: Writing) -> Item:
        name, actions, condition = _updating(statement["Statement"])
        table = self._tables.table(name)
        values = {f"?{place}": value for place, value in enumerate(statement["Parameters"])}
        marks_before = statement["Statement"].partition(f' WHERE "{table.keys[0]}" = ?')[0].count("?")
        key = (plain(values[f"?{marks_before}"]),)
        item = table.items.get(key)
        scope = Scope(item or {}, {}, values)
        if item is None or not condition(scope):
            more = {} if item is None else {"Item": dict(item)}
            raise refusal("ConditionalCheckFailedException", "The conditional request failed", **more)
        new = self._updated(table, item, actions, scope)
        self._tables.write(name, key, new, writing.lag_seconds)
        returned = {"Item": dict(new)} if statement["Statement"].endswith(" RETURNING ALL NEW *") else {}
        return {"TableName": name} | returned

    def _call_transact_write_items(self, arguments: Item, writing: Writing) -> Item:
        token = arguments.get("ClientRequestToken")
        if token is not None and token in self._tables.tokens:
            return {}
        reasons: list[Item] = []
        for action in arguments["TransactItems"]:
            ((kind, inner),) = action.items()
            key = self._tables.table(inner["TableName"]).key_of(
                inner["Item"] if kind == "Put" else inner["Key"]
            )
            try:
                self._checked(inner, key)
                reasons.append({"Code": "None"})
            except ClientError as error:
                reasons.append({"Code": "ConditionalCheckFailed", "Message": "failed"} | _item_in(error))
        if any(reason["Code"] != "None" for reason in reasons):
            raise refusal(
                "TransactionCanceledException", "Transaction cancelled", CancellationReasons=reasons
            )
        calls = {
            "Put": self._call_put_item,
            "Delete": self._call_delete_item,
            "Update": self._call_update_item,
        }
        for action in arguments["TransactItems"]:
            ((kind, inner),) = action.items()
            if kind != "ConditionCheck":
                calls[kind](
                    {name: value for name, value in inner.items() if name != "ConditionExpression"}, writing
                )
        if token is not None:
            self._tables.tokens.add(token)
        return {}

    # Many items.

    def _call_scan(self, arguments: Item, _writing: Writing) -> Item:
        table = self._tables.table(arguments["TableName"])
        keys = sorted(table.items)
        if (start := arguments.get("ExclusiveStartKey")) is not None:
            keys = [key for key in keys if key > table.key_of(start)]
        return self._page(arguments, [(key, table.items[key]) for key in keys], table.keys)

    def _call_query(self, arguments: Item, _writing: Writing) -> Item:
        table = self._tables.table(arguments["TableName"])
        index, keys = table.primary, table.keys
        if (name := arguments.get("IndexName")) is not None:
            if name not in table.indexes:
                raise refusal("ValidationException", f"The table does not have the specified index: {name}")
            index = table.indexes[name]
            index.catch_up(self._tables.now())
            keys = [*keys, index.hash_key, *([index.range_key] if index.range_key else [])]
        partition, condition = self._partition(arguments, index)
        entries = index.entries.get(partition, [])
        if not arguments.get("ScanIndexForward", True):
            entries = entries[::-1]
        if (start := arguments.get("ExclusiveStartKey")) is not None:
            place = (plain(start[index.range_key]) if index.range_key else b"", table.key_of(start))
            forward = arguments.get("ScanIndexForward", True)
            entries = [entry for entry in entries if (entry > place if forward else entry < place)]
        found = ((key, index.shown[key][2]) for _place, key in entries)
        chosen = [(key, item) for key, item in found if condition(_scope(item, arguments))]
        return self._page(arguments, chosen, keys)

    @staticmethod
    def _partition(arguments: Item, index: Index) -> tuple[Any, Term]:
        text = arguments["KeyConditionExpression"]
        match = re.match(r"(#?\w+) = (:\w+)", text)
        names = arguments.get("ExpressionAttributeNames", {})
        if match is None or names.get(match[1], match[1]) != index.hash_key:
            raise NotImplementedError(text)
        return plain(arguments["ExpressionAttributeValues"][match[2]]), condition_of(text)

    @staticmethod
    def _page(arguments: Item, found: list[tuple[Any, Item]], keys: list[str]) -> Item:
        limit, passes = arguments.get("Limit", len(found) + 1), arguments.get("FilterExpression")
        evaluated: list[Item] = []
        left_bytes = MAX_PAGE_BYTES
        for _key, item in found:
            if len(evaluated) >= limit or left_bytes <= 0:
                break
            evaluated.append(item)
            left_bytes -= item_bytes(item)
        kept = [item for item in evaluated if passes is None or condition_of(passes)(_scope(item, arguments))]
        page: Item = {"Count": len(kept), "ScannedCount": len(evaluated)}
        if arguments.get("Select") != "COUNT":
            page["Items"] = [dict(item) for item in kept]
        if evaluated and (len(evaluated) == limit or len(evaluated) < len(found)):
            page["LastEvaluatedKey"] = {name: evaluated[-1][name] for name in keys}
        return page


def _first_key(arguments: Item) -> str:
    """Return the key of the item that a call is about, or of the first one; empty for a query."""
    if "RequestItems" in arguments:
        (wanted,) = arguments["RequestItems"].values()
        first = wanted["Keys"][0] if isinstance(wanted, dict) else next(iter(wanted[0].values()))
        arguments = first if "Item" in first or "Key" in first else {"Key": first}
    item: Item = arguments.get("Item") or arguments.get("Key") or {}
    return str(item.get("taskId", {}).get("S", ""))


def _scope(item: Item, arguments: Item) -> Scope:
    names = arguments.get("ExpressionAttributeNames", {})
    return Scope(item, names, arguments.get("ExpressionAttributeValues", {}))


def _item_in(error: ClientError) -> Item:
    response: Any = error.response
    return {"Item": response["Item"]} if "Item" in response else {}


def _of_code(code: str) -> type[ClientError]:
    return type(code, (ClientError,), {})
