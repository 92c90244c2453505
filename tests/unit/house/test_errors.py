"""The names of errors and their contents; a missing package names the extra to install."""

import copy
import pickle
import sys
from typing import Any

import pytest

from freshq import Busy, Receipt, Reject, Retry, errors
from freshq.cli.errors import exit_status
from freshq.errors import (
    DamagedTask,
    FreshqError,
    IllegalTransition,
    LeaseLost,
    LostRace,
    MissingExtra,
    NotFound,
    Overloaded,
    PutIncomplete,
    RefusedError,
    StoreError,
    WaitTimeout,
    needs,
)
from freshq.model.answers import PutOutcome


@pytest.mark.parametrize("error_class", [NotFound, LeaseLost, IllegalTransition, LostRace])
def test_a_refusal_names_a_task_or_a_resource_and_never_one_as_the_other(
    error_class: type[NotFound | LeaseLost | IllegalTransition | LostRace],
) -> None:
    rest: dict[type, list[Any]] = {
        NotFound: [],
        LeaseLost: ["late"],
        IllegalTransition: ["offer", "QUEUED", "wait"],
        LostRace: [10],
    }
    of_resource: Any = error_class.of_resource
    error = of_resource("a", *rest[error_class])
    assert (error.task_id, error.resource_id) == (None, "a")
    assert str(error).startswith("resource 'a': ")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - as a pool of processes does
    assert (str(again), vars(again)) == (str(error), vars(error))


RECEIPTS = [Receipt("a", PutOutcome.CREATED), StoreError("no answer")]
ERRORS: list[Exception] = [
    FreshqError("any"),
    Overloaded("a", "admission", 1.5, least_value=4.0),
    Overloaded.of_late_child("a", 0.5, 1.0),
    WaitTimeout("a", "PENDING", 1.0, 3),
    DamagedTask("a", KeyError("created")),
    PutIncomplete(RECEIPTS, ["a", "b"]),
    MissingExtra("sqlalchemy", "sql"),
    Retry("busy", delay_seconds=3),
    Reject("never"),
    Busy("later"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_copied_and_sent_to_another_process(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - as a pool does
        assert type(again) is type(error)
        assert (str(again), getattr(again, "name", None)) == (str(error), getattr(error, "name", None))
        assert repr(vars(again)) == repr(vars(error))


def test_every_error_is_among_those() -> None:
    made = [type(error) for error in ERRORS] + [NotFound, LeaseLost, IllegalTransition, LostRace]
    with_constructors = [
        each for each in vars(errors).values() if "__init__" in getattr(each, "__dict__", ())
    ]
    assert {each for each in with_constructors if issubclass(each, FreshqError)} <= {*made, RefusedError}


def test_a_lost_race_exits_as_it_always_did() -> None:
    assert exit_status(LostRace.of_task("a", 10)) == 1
    assert exit_status(LostRace.of_resource("a", 10)) == exit_status(LostRace.of_caller("a", 10)) == 3


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
