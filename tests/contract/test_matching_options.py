"""The order and the lease live with the resources: every process that opens them follows them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from freshq import MatchQueue
from freshq.matching.stores.sql import SqlMatchStore
from tests.support.matching import Desk, join, names
from tests.support.one_thread_patch import confined


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which a minute has passed for every process."""
    real, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", confined(lambda: real() + sum(passed), time.monotonic))
    return lambda: passed.append(61.0)


def verbs(queue: MatchQueue) -> dict[str, Callable[[], object]]:
    return {
        "register": lambda: queue.register("b", attributes={}),
        "offer": lambda: queue.offer("a"),
        "withdraw": lambda: queue.withdraw("a"),
        "unregister": lambda: queue.unregister("a"),
        "match": lambda: queue.match({}),
        "request": lambda: queue.request({}, caller_id="ann"),
        "recover": queue.admin.recover,
        "create_table": queue.create_table,
        "configure": queue.configure,
    }


def waiting(desk: Desk, queue: MatchQueue, *resource_ids: str) -> None:
    for resource_id in resource_ids:
        join(queue, resource_id, {})
        desk.clock.advance(1)


@pytest.mark.parametrize(
    ("option", "value"), [("order", "lifo"), ("lease_seconds", 30), ("lease_seconds", None)]
)
def test_an_option_that_is_not_stored_has_its_default_for_every_process(
    desk: Desk, option: str, value: Any
) -> None:
    desk.queue().create_table()
    desk.queue().register("a", attributes={})
    wrong = desk.queue(**{option: value})
    for name, verb in verbs(wrong).items():
        with pytest.raises(
            ValueError, match=f"^{option}: the resources have .* by default, and .* was named"
        ):
            verb()
        assert name
    assert [each.resource_id for each in desk.queue().resources()] == ["a"]
    desk.queue(order="fifo", lease_seconds=3600).offer("a")  # to name the defaults is no contradiction


def test_who_names_options_first_stores_them(desk: Desk) -> None:
    first = desk.queue(order="lifo", lease_seconds=30)
    waiting(desk, first, "a", "b")
    other = desk.queue()
    (match,) = other.match({})
    assert (match.resource_id, match.lease_until) == ("b", desk.clock.now + 30)
    with pytest.raises(ValueError, match=r"^order: the resources have lifo stored, and fifo was named"):
        desk.queue(order="fifo").match({})
    with pytest.raises(ValueError, match=r"^lease_seconds: the resources have 30 stored, and none was named"):
        desk.queue(order="lifo", lease_seconds=None).match({})


def test_create_table_stores_what_is_named(desk: Desk) -> None:
    desk.queue(order="lifo").create_table()
    waiting(desk, desk.queue(), "a", "b")
    assert names(desk.queue().match({}, limit=2)) == ["b", "a"]


def test_resources_without_stored_options_have_followed_the_defaults(desk: Desk) -> None:
    waiting(desk, desk.queue(), "a")
    with pytest.raises(ValueError, match=r"^order: the resources have fifo by default"):
        desk.queue(order="lifo").match({})


def test_resources_that_were_only_looked_at_are_new(desk: Desk) -> None:
    first = desk.queue()
    first.create_table()
    assert (first.configure().order, [*first.resources()]) == ("fifo", [])
    first.admin.recover()
    waiting(desk, desk.queue(order="lifo"), "a", "b")
    assert names(desk.queue().match({})) == ["b"]


def test_resources_stay_used_by_the_defaults(desk: Desk) -> None:
    queue = desk.queue()
    queue.register("a", attributes={})
    queue.unregister("a")
    for verb in verbs(desk.queue(order="lifo")).values():
        with pytest.raises(
            ValueError, match=r"^order: the resources have fifo by default, and lifo was named"
        ):
            verb()


@pytest.mark.parametrize("peer", [{}, {"order": "fifo"}], ids=["by the defaults", "with other options"])
def test_a_process_whose_options_were_not_stored_first_is_refused(
    desk: Desk, later: Callable[[], None], peer: dict[str, Any]
) -> None:
    ours = desk.queue(order="lifo")
    assert [*ours.resources()] == []
    ours.admin.recover()
    desk.queue(**peer).register("a", attributes={})
    later()
    for _ in range(2):
        for verb in verbs(ours).values():
            with pytest.raises(ValueError, match=r"^order: the resources have fifo .*, and lifo was named"):
                verb()
    assert ours.configure(order="lifo").order == "lifo"
    ours.offer("a")


def test_a_process_can_override_and_stores_nothing(desk: Desk) -> None:
    desk.queue(order="fifo").create_table()
    waiting(desk, desk.queue(), "a", "b")
    assert names(desk.queue(order="lifo", override=True).match({})) == ["b"]
    assert desk.queue().configure().order == "fifo"


def test_a_process_in_use_follows_a_change_within_a_minute(desk: Desk, later: Callable[[], None]) -> None:
    queue = desk.queue()
    waiting(desk, queue, "a", "b", "c")
    assert names(queue.match({})) == ["a"]
    changed = desk.queue().configure(order="lifo", lease_seconds=None)
    assert (changed.order, changed.lease_seconds) == ("lifo", None)
    later()
    (match,) = queue.match({})
    assert (match.resource_id, match.lease_until) == ("c", None)


def test_configure_is_the_remedy_of_a_refusal(desk: Desk) -> None:
    waiting(desk, desk.queue(), "a", "b")
    wrong = desk.queue(order="lifo")
    with pytest.raises(ValueError, match="order"):
        wrong.match({})
    wrong.configure(order="lifo")
    assert names(wrong.match({})) == ["b"]
    with pytest.raises(ValueError, match="lease_seconds"):
        desk.queue(lease_seconds=5).configure(order="fifo")
    assert desk.queue().configure().order == "lifo"


@pytest.mark.parametrize("options", [{"order": "random"}, {"lease_seconds": 0}, {"order": "adaptive"}])
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    for take in (MatchQueue.memory, MatchQueue.memory().configure):
        with pytest.raises(ValueError, match=f"^{name}: "):
            take(**options)


def test_deleted_tables_forget_the_options(desk: Desk) -> None:
    desk.queue(order="lifo").create_table()
    desk.queue().delete_table()
    if desk.engine is not None:
        SqlMatchStore(desk.engine).create_table()
    elif desk.client is not None:
        return
    assert desk.queue(order="fifo").configure().order == "fifo"
