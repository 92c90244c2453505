"""A missing package names the extra to install."""

import sys

import pytest

from freshq.errors import FreshqError, MissingExtra, needs


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra) as caught, needs("sql"):
        import sqlalchemy.orm  # noqa: F401, PLC0415 - fails on purpose
    assert str(caught.value) == "sqlalchemy is not installed; run: pip install 'freshq[sql]'"
    assert (caught.value.name, caught.value.extra) == ("sqlalchemy", "sql")
    assert isinstance(caught.value, FreshqError)
    assert isinstance(caught.value, ImportError)


def test_a_missing_module_of_freshq_is_not_blamed_on_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needs("sql"):
        __import__("freshq.no_such_module")
    assert not isinstance(caught.value, MissingExtra)
