"""No error shows a secret, nor the rest of a secret that a special character cut off."""

from collections.abc import Callable
from pathlib import Path

import pytest

from freshq import AsyncQueue, MatchQueue, Queue
from freshq.addresses import open_queue, open_together, with_connections
from freshq.errors import MAX_QUOTED_CHARS, quoted, without_secrets

# Characters at which some parser ends a password.
CHARACTERS = [*"#?/@:%&= \\[],;'\"\n", "%zz", "#?", "?#", "/#@"]
ADDRESSES = [
    "postgresql://app:{}@db:5432/app",
    "postgresql://app:{}@db:port/app",
    "postgresql:/app:{}@db/app",
    "postgres//app:{}@db/app",
    "postgresql://app:{}@h1,h2/app",
    "postgresql://app:{}@db/app?max_connections=ten",
    "postgresql://app:{}@db/app?nmae=x",
    "postgresql://app:{}@db/app#ta ble",
    "postgresql+asyncpg://app:{}@db/app",
    "mysql://app:{}@h1,h2/app",
    "mariadb://app:{}@[::1/app",
    "oracle://app:{}@db/app",
    "sqlite://app:{}@x",
    "dynamodb://app:{}@Table",
    "memory://app:{}@x",
    "https://app:{}@db/",
    "app:{}@db/app",
    "{}@db/app",
    "postgresql://db/app?user=a&password={}",
    "postgresql://db/app?password={}&password=2",
    "postgresql://db/app?sslpassword={}&max_connections=a",
    "mysql://db/app?passwd={}&x",
    "sqlite:///t.db?password={}",
    "dynamodb://Table?secret={}",
]
OPENERS: dict[str, Callable[[str], object]] = {
    "Queue.sql": Queue.sql,
    "AsyncQueue.sql": AsyncQueue.sql,
    "MatchQueue.sql": MatchQueue.sql,
    "open_queue": open_queue,
    "open_together": lambda address: open_together([address]),
    "with_connections": lambda address: with_connections(address, 3),
    "Queue.dynamodb": Queue.dynamodb,
    "MatchQueue.dynamodb": MatchQueue.dynamodb,
    "table": lambda address: Queue.sql("sqlite:///t.db", address),
}


def texts_of(error: BaseException | None) -> list[str]:
    """Return the text of an error's traceback."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return texts


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS.keys())
def test_no_part_of_a_password_is_shown(
    opener: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ADDRESSES:
        for character in CHARACTERS:
            password = f"hunter{character}tail"
            try:
                opener(address.format(password))
            except ValueError as error:
                for text in texts_of(error):
                    assert "hunter" not in text, (address, password, text)
                    assert "tail" not in text, (address, password, text)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://app:a#b@db/app",
        "postgresql://app:a?b@db/app",
        "postgresql://app:a?b=c@db/app",
        "postgresql://app:12?b@db/app",
        "postgresql://app:a/b@db:x/app",
        "mariadb://a?b:c@db/app",
    ],
)
def test_the_remedy_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"%23 .*%3F .*%2F") as refusal:
        open_queue(address)
    assert "b@db" not in str(refusal.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://app:a%23b%3F%2F@db/app",
        "postgresql:///app?user=me@server",
        "postgresql://[::1]/app?user=me@server",
        "postgresql://h1:5432,h2/app?user=me@server#jobs",
        "postgresql://db:5432/app?user=me@server",
    ],
)
def test_an_address_in_order_is_not_suspected(address: str) -> None:
    open_queue(address).close()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("order 7", "'order 7'"),
        ("anna@example.org", "'anna@example.org'"),
        ("postgresql://app:pw@db/app", "'postgresql://***@db/app'"),
        ("app:pw@db", "'***@db'"),
        ("host=db password=pw", "'host=db password=***'"),
        ({"url": "postgresql://app:pw@db/app"}, "***@db/app'}"),
        ({"password": "pw"}, "{'password':***"),
        (12, "12"),
    ],
)
def test_a_quoted_value(value: object, shown: str) -> None:
    assert quoted(value) == shown


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@host/tasks", "postgresql://***@host/tasks"),
        ("postgresql//me:se/c:r@et@host/tasks", "postgresql//***@host/tasks"),
        ("me:secret@host/tasks", "***@host/tasks"),
        ("postgresql://host:5432/tasks", "postgresql://host:5432/tasks"),
        ("postgresql://host/tasks?password=secret&a=1", "postgresql://host/tasks?password=***"),
        ("sqlite:///tasks.db", "sqlite:///tasks.db"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


@pytest.mark.parametrize(
    "part", ["[", "a", "/", ":", "pass", "pass'", "pass ", "[@", "a:", ":/", "@", "@pass"]
)
def test_a_value_of_hundreds_of_thousands_of_characters_is_shortened_at_once(part: str) -> None:
    """A search whose time grows with the square of the length would take hours."""
    assert len(quoted(part * 500_000)) <= MAX_QUOTED_CHARS + len("...")
