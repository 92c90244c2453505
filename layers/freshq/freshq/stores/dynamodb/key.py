"""The key of a table: of freshq's own tables and of attached ones."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from freshq.errors import quoted
from freshq.model.fields import MAX_ID_BYTES, RESERVED_ID_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

KeyValue: TypeAlias = str | int | Decimal | bytes
TEXT: Final = "S"
NUMBER: Final = "N"
BINARY: Final = "B"
SEPARATOR: Final = "/"
NUMBER_FORM: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# DynamoDB's limits of a number: 38 digits, and a magnitude from 1E-130 to below 1E+126.
MAX_DIGITS: Final = 38
LEAST_EXPONENT: Final = -130
GREATEST_EXPONENT: Final = 125
# freshq's own numbers have 38 digits and the greatest exponent: -MANTISSA E+88. They are reserved.
OWN_EXPONENT: Final = GREATEST_EXPONENT - MAX_DIGITS + 1
LEAST_MANTISSA: Final = 10 ** (MAX_DIGITS - 1)
GREATEST_OWN_NUMBER: Final = Decimal(f"-1E{GREATEST_EXPONENT}")
# The Python type that an application gives for a key, by attribute type.
GIVEN: Final[dict[str, tuple[Any, str]]] = {
    TEXT: (str, "a str"),
    NUMBER: ((int, Decimal), "an int or a Decimal"),
    BINARY: (bytes, "bytes"),
}
# The range key of freshq's own items, by type. Their hash keys differ.
OWN_RANGE: Final[dict[str, Any]] = {
    TEXT: RESERVED_ID_PREFIX,
    NUMBER: "0",
    BINARY: RESERVED_ID_PREFIX.encode(),
}


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The hash key or the range key of a table.

    Attributes:
        name: Name of the attribute.
        attribute_type: S, N or B.
    """

    name: str
    attribute_type: str = TEXT

    def value(self, text: str) -> KeyValue:
        """Return the value that a string names, in the form of the low-level client.

        Raises:
            ValueError: If the string is no valid id; the error says what is allowed.
        """
        if self.attribute_type == NUMBER:
            return number_text(text, self.name)
        if self.attribute_type == BINARY:
            return _bytes(text, self.name)
        return text

    def text(self, value: Any) -> str:
        """Return the text that names a value."""
        if self.attribute_type == NUMBER:
            return _digits(Decimal(value))
        return base64.b64encode(bytes(value)).decode() if self.attribute_type == BINARY else str(value)

    def given(self, value: KeyValue) -> str:
        """Return the text that names a value of an application.

        Raises:
            ValueError: If the value is not of the type of this key.
        """
        wanted, allowed = GIVEN[self.attribute_type]
        if not isinstance(value, wanted) or isinstance(value, bool):
            msg = f"{self.name}: must be {allowed}, got {type(value).__name__}"
            raise ValueError(msg)
        return self.text(self.value(str(value)) if self.attribute_type == NUMBER else value)


@dataclass(frozen=True, slots=True)
class TableKey:
    """The key of a table.

    Attributes:
        hash: Its hash key.
        range: Its range key; None if it has none.
    """

    hash: KeyPart
    range: KeyPart | None = None

    @classmethod
    def named(cls, name: str) -> TableKey:
        """Return the key of a table with a hash key of type S and no range key."""
        return cls(KeyPart(name))

    @property
    def has_own_ids(self) -> bool:
        """Whether freshq's own items must name their id in an attribute, as their key cannot."""
        return self.hash.attribute_type == NUMBER

    def __str__(self) -> str:
        """Return the names and types, such as ``customer (S), at (N)``."""
        return ", ".join(f"{part.name} ({part.attribute_type})" for part in (self.hash, self.range) if part)

    @property
    def form(self) -> str:
        """How the id of a record is written, for messages."""
        forms = {TEXT: "text", NUMBER: "a number", BINARY: "base64"}
        if self.range is None:
            return f"the key {self.hash.name!r} as {forms[self.hash.attribute_type]}"
        both = f"{self.hash.name.upper()}/{self.range.name.upper()}"
        types = f"{forms[self.hash.attribute_type]} and {forms[self.range.attribute_type]}"
        return f"{both}, {types}, with '/' and '%' inside either written %2F and %25"

    def attributes(self, item_id: str) -> dict[str, Any]:
        """Return the key attributes of an item.

        Raises:
            ValueError: If no key has this id.
        """
        if item_id.startswith(RESERVED_ID_PREFIX):
            return self._own_attributes(item_id)
        try:
            return self._attributes(item_id)
        except ValueError as error:
            msg = f"must be {self.form} ({error}), got {quoted(item_id)}"
            raise ValueError(msg) from None

    def id_of(self, item: Mapping[str, Any], own_id: str | None = None) -> str:
        """Return the id of an item.

        Args:
            item: Its attributes under the names in the table, the key among them.
            own_id: The id stored in an attribute of one of freshq's own items; None if there is none.
        """
        value = item[self.hash.name][self.hash.attribute_type]
        if own_id is not None and self.has_own_ids:
            return own_id
        if self.hash.attribute_type == BINARY and value.startswith(RESERVED_ID_PREFIX.encode()):
            return str(value.decode(errors="replace"))
        text = self.hash.text(value)
        if self.range is None or text.startswith(RESERVED_ID_PREFIX):
            return text
        return _joined(text, self.range.text(item[self.range.name][self.range.attribute_type]))

    def checked_id(self, item_id: str, name: str = "task_id") -> str:
        """Return the id of a record in its canonical form.

        Args:
            item_id: The id, perhaps in another form, such as 1.0 for 1.
            name: The argument, for messages.

        Raises:
            ValueError: If no record can have this id.
        """
        try:
            return self._checked_id(item_id)
        except ValueError as error:
            msg = f"{name}: {error}"
            raise ValueError(msg) from None

    def _checked_id(self, item_id: str) -> str:
        key = self.attributes(item_id)
        if self._is_reserved(key):
            msg = f"{quoted(item_id)} is the key of one of freshq's own items; such keys are reserved"
            raise ValueError(msg)
        checked = self.id_of(key)
        if len(checked.encode()) > MAX_ID_BYTES:
            msg = f"{len(checked.encode())} bytes, at most {MAX_ID_BYTES} are allowed"
            raise ValueError(msg)
        return checked

    def record_id(self, hash_key: KeyValue, range_key: KeyValue | None = None) -> str:
        """Return the id of the record with a key.

        Raises:
            ValueError: If it is no key of this table.
        """
        text = self.hash.given(hash_key)
        if self.range is None:
            if range_key is not None:
                raise ValueError("range_key: the table has no range key")
            return self.checked_id(text)
        if range_key is None:
            msg = f"range_key: required, the table has the range key {self.range.name!r}"
            raise ValueError(msg)
        return self.checked_id(_joined(text, self.range.given(range_key)))

    def _attributes(self, item_id: str) -> dict[str, Any]:
        if self.range is None:
            return _attribute(self.hash, item_id)
        parts = item_id.split(SEPARATOR)
        if len(parts) != 2:  # noqa: PLR2004 - the hash key and the range key
            msg = f"it has {len(parts) - 1} '/', not one"
            raise ValueError(msg)
        return _attribute(self.hash, _unescaped(parts[0])) | _attribute(self.range, _unescaped(parts[1]))

    def _own_attributes(self, item_id: str) -> dict[str, Any]:
        value: Any = item_id
        if self.hash.attribute_type == NUMBER:
            value = own_number(item_id)
        elif self.hash.attribute_type == BINARY:
            value = item_id.encode()
        key = {self.hash.name: {self.hash.attribute_type: value}}
        if self.range is not None:
            key[self.range.name] = {self.range.attribute_type: OWN_RANGE[self.range.attribute_type]}
        return key

    def _is_reserved(self, key: Mapping[str, Any]) -> bool:
        value = key[self.hash.name][self.hash.attribute_type]
        if self.hash.attribute_type == NUMBER:
            return Decimal(value) <= GREATEST_OWN_NUMBER
        prefix = RESERVED_ID_PREFIX.encode() if self.hash.attribute_type == BINARY else RESERVED_ID_PREFIX
        return bool(value.startswith(prefix))


def own_number(item_id: str) -> str:
    """Return the number that is the hash key of one of freshq's own items.

    It has 126 bits of the id's SHA-256, so that ids do not collide.
    """
    digest = int.from_bytes(hashlib.sha256(item_id.encode()).digest())
    mantissa = LEAST_MANTISSA + digest % (9 * LEAST_MANTISSA)
    return f"-{mantissa}E{OWN_EXPONENT}"


def _attribute(part: KeyPart, text: str) -> dict[str, Any]:
    if not text:
        msg = f"{part.name} is empty"
        raise ValueError(msg)
    return {part.name: {part.attribute_type: part.value(text)}}


def _joined(hash_text: str, range_text: str) -> str:
    return SEPARATOR.join(
        text.replace("%", "%25").replace(SEPARATOR, "%2F") for text in (hash_text, range_text)
    )


def _unescaped(text: str) -> str:
    if BROKEN_ESCAPE.search(text):
        raise ValueError("a '%' is not followed by two hexadecimal digits")
    return unquote(text, errors="strict")


def number_text(text: str, name: str) -> str:
    """Return a number in digits, exactly, whatever the decimal context of the caller.

    Args:
        text: The number, as Python, JSON or DynamoDB writes it.
        name: The name of the value, for messages.

    Raises:
        ValueError: If it is no number, or DynamoDB does not allow it.
    """
    if not NUMBER_FORM.fullmatch(text):
        msg = f"{name} is not a number"
        raise ValueError(msg)
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    fits = len(digits) <= MAX_DIGITS and LEAST_EXPONENT <= number.adjusted() <= GREATEST_EXPONENT
    if number and not fits:
        msg = f"{name} has more digits or another size than DynamoDB allows"
        raise ValueError(msg)
    return _digits(number)


def _bytes(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        msg = f"{name} is not base64"
        raise ValueError(msg) from None


def _digits(number: Decimal) -> str:
    """Return a number in digits, without an exponent, zeros at the end or the sign of zero."""
    if not number:
        return "0"
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
