"""The options after "?" in the url of a database: those of the database, not of freshq."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from freshq.errors import quoted
from freshq.model.options import SqlOptions

if TYPE_CHECKING:
    import sqlalchemy as sa

OWN: Final = (*SqlOptions.__annotations__, "history", "history_seconds")
# What Python's driver and SQLite itself know; they take any other name without a word.
OF_SQLITE: Final = (
    *("timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"),
    *("uri", "mode", "cache", "vfs", "psow", "nolock", "immutable"),
)
# Less than this alike, a name is rather one of the database's: "dbname" is no misspelt "name".
ALIKE: Final = 0.85


def check_url_options(url: sa.URL) -> None:
    """Check that no option of a url was meant for freshq.

    Raises:
        ValueError: If one is an option of freshq or nearly so, or on SQLite unknown.
    """
    for name in url.query:
        if name in OWN:
            msg = (
                f"url: {name} is an option of freshq, not of the database; pass it as an argument, {name}=..."
            )
            raise ValueError(msg)
        if (meant := _meant(name)) is not None:
            msg = f"url: {quoted(name)} is not an option of the database; did you mean freshq's {meant}?"
            raise ValueError(msg)
        if url.get_backend_name() == "sqlite" and name not in OF_SQLITE:
            msg = f"url: SQLite has no option {quoted(name)}; use one of {', '.join(OF_SQLITE)}"
            raise ValueError(msg)


def _meant(name: str) -> str | None:
    """Return the option of freshq that a name is a part, or nearly the whole, of; None if there is none."""
    name = name.lower().replace("-", "_")
    if name in OF_SQLITE:
        return None
    longer = (own for own in OWN if own == name or own.startswith(f"{name}_"))
    return next(longer, next(iter(get_close_matches(name, OWN, 1, ALIKE)), None))
