"""Promises to resources and callers, on every store."""

from typing import Any, Final

import pytest

from freshq import MatchQueue
from freshq.errors import IllegalTransition, LeaseLost, NotFound, RefusedError
from freshq.matching import ResourceStatus
from freshq.matching.places import GREATEST_KEY, LEAST_KEY
from freshq.matching.stores.base import Span
from tests.support.matching import ARTICLE, Desk, join, names, one
from tests.support.refusals import refused

SPANISH_MAN = {"language": "Spanish", "gender": "M"}


def status(queue: MatchQueue, resource_id: str) -> ResourceStatus:
    resource = queue.get(resource_id)
    assert resource is not None
    return resource.status


# --- matches


def test_the_example_of_the_article(desk: Desk) -> None:
    queue = desk.staffed()
    assert queue.depths() == {
        "gender=F&language=English": 2,
        "gender=F&language=French": 1,
        "gender=F&language=Spanish": 3,
        "gender=M&language=English": 1,
        "gender=M&language=French": 1,
        "gender=M&language=Spanish": 1,
        "gender=T&language=English": 1,
    }
    billy = one(queue, SPANISH_MAN)
    assert (billy.resource_id, billy.rank, billy.criteria) == ("Billy", 0, SPANISH_MAN)
    assert billy.attributes == {"gender": ("M",), "language": ("English", "French", "Spanish")}
    # He left every queue in one write: a second caller, who asks for a man with French, finds nobody.
    assert queue.match({"language": "French", "gender": "M"}) == []
    assert not [name for name in queue.depths() if name.startswith("gender=M")]
    assert status(queue, "Billy") is ResourceStatus.MATCHED
    queue.complete(billy)
    assert status(queue, "Billy") is ResourceStatus.AVAILABLE
    assert queue.match(SPANISH_MAN) == []  # available, not yet queued
    queue.offer("Billy")
    assert names(queue.match(SPANISH_MAN)) == ["Billy"]


@pytest.mark.parametrize(
    ("criteria", "order"),
    [
        ({"language": "Spanish", "gender": "F"}, ["Christine", "Courtney", "Ellen"]),
        ({"language": "Spanish"}, ["Billy", "Christine", "Courtney", "Ellen"]),
        ({"gender": "F"}, ["Christine", "Courtney", "Ellen"]),
        ({}, ["Remy", "Billy", "Christine", "Courtney", "Ellen"]),
        ({"gender": {"T", "M"}}, ["Remy", "Billy"]),
        ({"language": {"French", "English"}}, ["Remy", "Billy", "Courtney", "Ellen"]),
        ({"language": ["French", "Spanish"]}, ["Billy", "Ellen", "Christine", "Courtney"]),
        ({"language": ["French", None]}, ["Billy", "Ellen", "Remy", "Christine", "Courtney"]),
        (
            {"language": ["French", {"English", "Spanish"}]},
            ["Billy", "Ellen", "Remy", "Christine", "Courtney"],
        ),
        ([{"gender": "T"}, {"language": "French"}], ["Remy", "Billy", "Ellen"]),
        (
            {"language": ["Spanish", "English"], "gender": ["F", "T"]},
            ["Christine", "Courtney", "Ellen", "Remy"],
        ),
        ({"language": "German"}, []),
        ({"language": "Spanish", "team": "night"}, []),
    ],
)
def test_fifo_among_the_resources_that_fit(desk: Desk, criteria: Any, order: list[str]) -> None:
    queue = desk.staffed()
    assert names(queue.match(criteria, limit=10)) == order
    assert queue.waiting() == len(ARTICLE) - len(order)


@pytest.mark.parametrize(
    ("criteria", "order"),
    [
        ({}, ["Ellen", "Courtney", "Christine", "Billy", "Remy"]),
        ({"language": "English"}, ["Ellen", "Courtney", "Billy", "Remy"]),
        ({"gender": ["T", "F"]}, ["Remy", "Ellen", "Courtney", "Christine"]),
    ],
)
def test_lifo_is_one_flag(desk: Desk, criteria: Any, order: list[str]) -> None:
    desk.staffed()
    assert names(desk.queue(order="lifo", override=True).match(criteria, limit=10)) == order


def test_the_rank_is_that_of_the_preference_that_was_met(desk: Desk) -> None:
    queue = desk.staffed()
    wish = {"language": ["French", "English", None], "gender": "F"}
    found = queue.match(wish, limit=10)
    assert [(match.resource_id, match.rank) for match in found] == [
        ("Ellen", 0),
        ("Courtney", 1),
        ("Christine", 2),
    ]
    assert found[2].criteria == {"gender": "F"}


def test_a_resource_with_a_new_attribute_keeps_its_position(desk: Desk) -> None:
    queue = desk.queue()
    join(queue, "old", {"language": "Spanish"})
    join(queue, "tall", {"language": "Spanish", "tallness": "2m"})
    join(queue, "new", {"language": "Spanish"})
    assert names(queue.match({"language": "Spanish"}, limit=9)) == ["old", "tall", "new"]


def test_a_resource_without_attributes_fits_criteria_that_allow_any(desk: Desk) -> None:
    queue = desk.queue()
    join(queue, "plain", {})
    assert queue.depths() == {"": 1}
    assert queue.match({"language": "Spanish"}) == []
    assert names(queue.match({"language": ["Spanish", None]})) == ["plain"]


def test_a_depth_counts_the_resources_of_just_these_names(desk: Desk) -> None:
    queue = desk.queue()
    join(queue, "plain", {"language": "Spanish", "gender": "F"})
    join(queue, "aged", {"language": "Spanish", "gender": "F", "age": "30"})
    join(queue, "zoned", {"language": {"Spanish", "English"}, "gender": "F", "zone": {"a", "b"}})
    assert queue.depths() == {
        "age=30&gender=F&language=Spanish": 1,
        "gender=F&language=English&zone=a": 1,
        "gender=F&language=English&zone=b": 1,
        "gender=F&language=Spanish": 1,
        "gender=F&language=Spanish&zone=a": 1,
        "gender=F&language=Spanish&zone=b": 1,
    }
    for number in range(4):
        join(queue, f"{number}", {"language": "Spanish", "gender": "F"})
    assert queue.depths()["gender=F&language=Spanish"] == 5
    assert queue.depths(limit=3)["gender=F&language=Spanish"] == 3
    with refused("limit"):
        queue.depths(limit=0)


def test_names_and_values_may_hold_any_character(desk: Desk) -> None:
    queue = desk.queue()
    odd = {"a=b&c": {"#1", "$2", '"'}, "zürich~": "日本 語%"}
    join(queue, "x#$/é", odd)
    assert queue.match({"a=b&c": "#"}) == []
    assert names(queue.match({"a=b&c": "$2", "zürich~": "日本 語%"})) == ["x#$/é"]


def test_more_wait_than_fit_on_a_page(desk: Desk) -> None:
    queue = desk.queue()
    for number in range(25):
        join(queue, f"{number:02}", {"language": {"English", "Spanish"}, "gender": "FM"[number % 2]})
    assert names(queue.match({}, limit=25)) == [f"{number:02}" for number in range(25)]
    assert queue.depths() == {}


def test_resources_queued_at_the_same_instant_have_separate_entries(desk: Desk) -> None:
    """Two processes with the same time do not overwrite each other's entries."""
    for process in range(2):
        for number in range(3):
            join(desk.queue(), f"{process}-{number}", {"language": "Spanish"})
    assert desk.queue().waiting() == 6
    assert len(desk.queue().match({}, limit=9)) == 6


# --- states


def test_registering_again_changes_nothing(desk: Desk) -> None:
    queue = desk.staffed()
    before = queue.get("Billy")
    assert queue.register("Billy", attributes=ARTICLE["Billy"]) == before
    assert queue.get("Billy") == before
    assert queue.waiting() == len(ARTICLE)


def test_attributes_change_only_while_available(desk: Desk) -> None:
    queue = desk.staffed()
    with pytest.raises(IllegalTransition):
        queue.register("Billy", attributes={"language": "German"})
    queue.withdraw("Billy")
    queue.register("Billy", attributes={"language": "German"})
    queue.offer("Billy")
    match = one(queue, {"language": "German"})
    with pytest.raises(IllegalTransition):
        queue.register("Billy", attributes={})
    queue.complete(match)
    assert queue.match({}, limit=9)
    assert status(queue, "Billy") is ResourceStatus.AVAILABLE


def test_offer_has_an_error_for_each_reason(desk: Desk) -> None:
    queue = desk.staffed()
    with pytest.raises(NotFound):
        queue.offer("Nobody")
    assert queue.get("Nobody") is None  # no phantom
    before = queue.depths()
    with pytest.raises(IllegalTransition):
        queue.offer("Billy")
    assert queue.depths() == before
    one(queue, SPANISH_MAN)
    with pytest.raises(IllegalTransition) as refused:
        queue.offer("Billy")
    assert refused.value.status is ResourceStatus.MATCHED


def test_withdraw_deletes_all_entries(desk: Desk) -> None:
    queue = desk.staffed()
    assert queue.withdraw("Billy").status is ResourceStatus.AVAILABLE
    assert queue.match({"gender": "M"}) == []
    assert queue.waiting() == 4
    assert queue.withdraw("Billy").status is ResourceStatus.AVAILABLE  # no error
    with pytest.raises(NotFound):
        queue.withdraw("Nobody")
    one(queue, {"gender": "T"})
    with pytest.raises(IllegalTransition):
        queue.withdraw("Remy")


def test_a_resource_that_left_and_returned_is_last(desk: Desk) -> None:
    queue = desk.staffed()
    queue.withdraw("Christine")
    queue.offer("Christine")
    assert names(queue.match({"gender": "F"}, limit=9)) == ["Courtney", "Ellen", "Christine"]


def test_unregister_deletes_an_available_resource(desk: Desk) -> None:
    queue = desk.staffed()
    with pytest.raises(IllegalTransition):
        queue.unregister("Billy")
    queue.withdraw("Billy")
    queue.unregister("Billy")
    assert queue.get("Billy") is None
    with pytest.raises(NotFound):
        queue.unregister("Billy")


# --- leases


def test_a_match_is_settled_once(desk: Desk) -> None:
    queue = desk.staffed()
    match = one(queue, SPANISH_MAN)
    queue.complete(match)
    for stale in (queue.complete, queue.extend, queue.release):
        with pytest.raises(LeaseLost):
            stale(match)


def test_a_released_resource_waits_in_its_old_position(desk: Desk) -> None:
    queue = desk.staffed()
    before = queue.get("Christine")
    match = one(queue, {"gender": "F"})
    desk.clock.advance(5)
    released = queue.release(match)
    assert before is not None
    assert (released.resource_id, released.status, released.since) == (
        *("Christine", ResourceStatus.QUEUED), before.since,
    )  # fmt: skip
    with pytest.raises(LeaseLost):
        queue.release(match)
    assert names(queue.match({"gender": "F"}, limit=9)) == ["Christine", "Courtney", "Ellen"]


def test_a_closed_queue_refuses_every_verb(desk: Desk) -> None:
    with desk.staffed() as queue:
        match = one(queue, SPANISH_MAN)
    queue.close()  # no error
    for verb in (
        *(queue.waiting, queue.depths, queue.resources, queue.callers, queue.create_table, queue.admin.now),
        *(queue.admin.recover, lambda: queue.match({}), lambda: queue.complete(match)),
        *(lambda: queue.get("Billy"), lambda: queue.request({}, caller_id="ann")),
    ):
        with pytest.raises(RefusedError):
            verb()
    assert desk.queue().complete(match).status is ResourceStatus.AVAILABLE


def test_the_resource_of_a_crashed_caller_returns_to_its_position(desk: Desk) -> None:
    queue = desk.staffed(lease_seconds=30)
    lost = one(queue, {"language": "Spanish", "gender": "F"})
    desk.clock.advance(29)
    assert queue.admin.recover() == 0
    desk.clock.advance(1)
    assert queue.admin.recover() == 1
    assert queue.admin.recover() == 0
    with pytest.raises(LeaseLost):
        queue.complete(lost)
    assert names(queue.match({"gender": "F"}, limit=9)) == ["Christine", "Courtney", "Ellen"]


def test_a_caller_who_finds_nothing_recovers_expired_matches(desk: Desk) -> None:
    queue = desk.staffed(lease_seconds=30)
    lost = one(queue, SPANISH_MAN)
    assert queue.match(SPANISH_MAN) == []
    desk.clock.advance(30)
    back = one(queue, SPANISH_MAN)
    assert back.resource_id == "Billy"
    assert back.token != lost.token
    with pytest.raises(LeaseLost):
        queue.complete(lost)
    queue.complete(back)


def test_a_resource_can_be_offered_after_the_lease(desk: Desk) -> None:
    queue = desk.staffed(lease_seconds=30)
    first = one(queue, {})
    desk.clock.advance(30)
    queue.offer("Remy")
    assert names(queue.match({})) == ["Remy"]
    desk.clock.advance(30)
    assert queue.withdraw("Remy").status is ResourceStatus.AVAILABLE
    with pytest.raises(LeaseLost):
        queue.complete(first)


def test_a_lease_can_be_renewed(desk: Desk) -> None:
    queue = desk.staffed(lease_seconds=30)
    match = one(queue, SPANISH_MAN)
    desk.clock.advance(20)
    longer = queue.extend(match)
    assert longer.lease_until == desk.clock() + 30
    assert longer.token == match.token
    desk.clock.advance(29)
    assert queue.admin.recover() == 0
    assert queue.extend(longer, lease_seconds=100).lease_until == desk.clock() + 100
    desk.clock.advance(99)
    assert queue.admin.recover() == 0
    queue.complete(match)


def test_an_expired_match_can_be_completed_until_it_is_recovered(desk: Desk) -> None:
    queue = desk.staffed(lease_seconds=30)
    match = one(queue, SPANISH_MAN)
    desk.clock.advance(300)
    assert queue.complete(match).status is ResourceStatus.AVAILABLE


def test_a_match_is_held_for_an_hour_by_default(desk: Desk) -> None:
    queue = desk.staffed()
    match = one(queue, SPANISH_MAN)
    assert match.lease_until == desk.clock() + 3600
    desk.clock.advance(3590)
    assert queue.match(SPANISH_MAN) == []
    desk.clock.advance(10)
    assert names(queue.match(SPANISH_MAN)) == ["Billy"]


def test_a_match_without_a_lease_is_held_until_it_is_released(desk: Desk) -> None:
    queue, other = desk.staffed(lease_seconds=None), desk.queue(lease_seconds=30, override=True)
    held, short = one(queue, SPANISH_MAN), one(other, {"gender": "T"})
    assert held.lease_until is None
    desk.clock.advance(10_000_000)
    assert queue.match(SPANISH_MAN) == []
    assert names(queue.match({"gender": "T"})) == [short.resource_id]  # that lease has expired
    with pytest.raises(IllegalTransition):
        queue.withdraw("Billy")
    assert other.extend(held, lease_seconds=5).lease_until is None  # never shortened
    assert queue.admin.held("Billy", held.token).lease_until is None
    queue.release(held)
    again = one(other, SPANISH_MAN)
    endless = queue.extend(again)
    assert endless.lease_until is None
    assert queue.extend(again, lease_seconds=5).token == again.token
    desk.clock.advance(10_000_000)
    assert queue.admin.recover() == 0
    queue.complete(again)
    assert queue.request(SPANISH_MAN, caller_id="ann") is None
    assert queue.offer("Billy").lease_until is None


# --- data


AGENT: Final = {"AgentID": 42, "AgentName": "Ellen \0 Müller", "skills": [1.5, None, True]}


def test_data_comes_with_the_resource_and_its_match(desk: Desk) -> None:
    queue = desk.queue()
    assert queue.register("Ellen", attributes=ARTICLE["Ellen"], data=AGENT).data == AGENT
    assert queue.offer("Ellen").data == AGENT
    assert queue.match({"AgentID": "42"}) == []
    assert list(queue.depths()) == [f"gender=F&language={name}" for name in ("English", "French", "Spanish")]
    match = one(queue, {"gender": "F"})
    assert match.data == AGENT
    assert queue.extend(match).data == AGENT
    assert queue.admin.held("Ellen", match.token).data == AGENT
    assert queue.release(match).data == AGENT
    asked = queue.request({"gender": "F"}, caller_id="ann")
    assert asked is not None
    assert asked.data == AGENT
    assert queue.complete(asked).data == AGENT
    assert queue.request({"gender": "F"}, caller_id="bob") is None
    queue.offer("Ellen")
    served = queue.request({"gender": "F"}, caller_id="bob")
    assert served is not None
    assert served.data == AGENT
    desk.clock.advance(3600)
    assert queue.admin.recover() == 1
    (resource,) = queue.resources()
    assert (resource.status, resource.data, queue.get("Ellen")) == (ResourceStatus.QUEUED, AGENT, resource)


def test_data_may_be_as_large_as_a_payload_in_spite_of_many_entries(desk: Desk) -> None:
    queue = desk.queue()
    attributes = {"language": {f"language {number:02}" for number in range(90)}}
    join(queue, "small", {"language": "language 00"})
    queue.register("large", attributes=attributes, data="x" * 390_000)
    queue.offer("large")
    small, large = queue.match({}, limit=2)
    assert (small.data, len(large.data)) == (None, 390_000)
    assert len(queue.release(large).data) == 390_000


def test_an_entry_without_its_data_is_not_matched_after_a_change(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = desk.queue(), desk.queue()
    queue.register("Ellen", attributes={}, data=AGENT)
    queue.offer("Ellen")
    page = queue._store.page(Span("", LEAST_KEY, GREATEST_KEY, newest_first=False, limit=9))
    other.complete(one(other, {}))
    monkeypatch.setattr(queue._store, "page", lambda _span: page)
    assert queue.match({}) == []
    assert queue.request({}, caller_id="ann") is None
    assert queue.request({}, caller_id="ann") is None


def test_data_changes_only_while_available(desk: Desk) -> None:
    queue = desk.queue()
    queue.register("Ellen", attributes={}, data={"a": 1, "b": 2})
    assert queue.register("Ellen", attributes={}, data={"a": True}).data == {"a": True}
    assert queue.register("Ellen", attributes={}, data={"a": 1, "b": 2}).data == {"a": 1, "b": 2}
    queue.offer("Ellen")
    assert queue.register("Ellen", attributes={}, data={"b": 2, "a": 1}).data == {"a": 1, "b": 2}
    with pytest.raises(IllegalTransition):
        queue.register("Ellen", attributes={}, data={"a": 2})
    match = one(queue, {})
    match.data["a"] = 3
    assert queue.complete(match).data == {"a": 1, "b": 2}
    assert queue.register("Ellen", attributes={}).data is None
    resource = queue.get("Ellen")
    assert resource is not None
    assert resource.data is None


# --- wrong arguments, which the queue refuses before it calls its store


@pytest.fixture
def checked_desk() -> Desk:
    """Return an empty store in memory."""
    return Desk()


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("English", "attributes"),
        ({"language": set()}, "attributes.language"),
        ({"language": 3}, "attributes.language"),
        ({"language": {"English", ""}}, "attributes.language"),
        ({"": "x"}, "attributes"),
        ({"language": "x" * 101}, "attributes.language"),
        ({"language": "\ud800"}, "attributes.language"),
        ({"a": {str(n) for n in range(98)}}, "attributes"),
        ({"a": {str(n) for n in range(10)}, "b": {str(n) for n in range(10)}}, "attributes"),
        ({f"{n}" + "é" * 24: "é" * 50 for n in range(6)}, "attributes"),
    ],
)
def test_wrong_attributes_are_refused_before_any_write(
    checked_desk: Desk, attributes: Any, named: str
) -> None:
    queue = checked_desk.queue()
    with refused(named):
        queue.register("a", attributes=attributes)
    assert queue.get("a") is None


@pytest.mark.parametrize("data", [float("nan"), {"a": {1, 2}}, {1: "a"}, "\ud800", "x" * 401_000])
def test_wrong_data_is_refused_before_any_write(checked_desk: Desk, data: Any) -> None:
    queue = checked_desk.queue()
    with refused("data"):
        queue.register("a", attributes={"language": {"x" * 100, *map(str, range(95))}}, data=data)
    assert queue.get("a") is None


@pytest.mark.parametrize(
    ("criteria", "named"),
    [
        ("Spanish", "criteria"),
        ([], "criteria"),
        ([[]], "criteria"),
        ({"language": []}, "criteria.language"),
        ({"language": set()}, "criteria.language"),
        ({"language": {None}}, "criteria.language"),
        ({"language": 3}, "criteria.language"),
        ({3: "Spanish"}, "criteria"),
        ({"a": list("abcdefghijk"), "b": list("abcdefghijk")}, "criteria"),
        ({f"{n}" + "é" * 24: "é" * 50 for n in range(9)}, "criteria"),
    ],
)
def test_wrong_criteria_never_look_like_an_empty_queue(checked_desk: Desk, criteria: Any, named: str) -> None:
    queue = checked_desk.staffed()
    with refused(named):
        queue.match(criteria)
    assert queue.waiting() == len(ARTICLE)


@pytest.mark.parametrize("limit", [0, 101, 1.5, True])
def test_wrong_limits(checked_desk: Desk, limit: Any) -> None:
    with refused("limit"):
        checked_desk.queue().match({}, limit=limit)


@pytest.mark.parametrize("verb", ["offer", "withdraw", "get", "unregister"])
@pytest.mark.parametrize("resource_id", ["", "é" * 129, 7, "\ud800"])
def test_wrong_ids(checked_desk: Desk, verb: str, resource_id: Any) -> None:
    with refused("resource_id"):
        getattr(checked_desk.queue(), verb)(resource_id)


@pytest.mark.parametrize(
    "option", [{"order": "priority"}, {"order": 1}, {"lease_seconds": 0}, {"lease_seconds": "1"}]
)
def test_wrong_options(option: dict[str, Any]) -> None:
    with refused(next(iter(option))):
        MatchQueue.memory(**option)


class TestExtendedMeanwhile:
    def test_a_recovery_that_read_the_expired_lease_does_not_take_it(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue, sweeper = desk.staffed(lease_seconds=60), desk.queue(lease_seconds=60)
        match = one(queue, {"gender": "T"})
        desk.clock.advance(61)
        read = list(sweeper.resources())
        extended = queue.extend(match)
        monkeypatch.setattr(sweeper._store, "resources", lambda: iter(read))
        assert sweeper.admin.recover() == 0
        monkeypatch.undo()
        resource = queue.get("Remy")
        assert resource is not None
        assert (resource.status, resource.lease_until) == (ResourceStatus.MATCHED, extended.lease_until)

    def test_its_holder_may_settle_with_the_match_from_before(self, desk: Desk) -> None:
        queue = desk.staffed(lease_seconds=60)
        match = one(queue, {"gender": "T"})
        desk.clock.advance(30)
        longer = queue.extend(match, lease_seconds=120)
        assert queue.extend(match, lease_seconds=20).token == match.token
        resource = queue.get("Remy")
        assert resource is not None
        assert resource.lease_until == longer.lease_until
        assert queue.complete(match).status is ResourceStatus.AVAILABLE
        with pytest.raises(LeaseLost):
            queue.extend(longer)


# --- after a crash


@pytest.mark.parametrize("lease_seconds", [60, None])
def test_a_supervisor_frees_one_resource_by_its_id(desk: Desk, lease_seconds: float | None) -> None:
    gone = desk.staffed(lease_seconds=lease_seconds)
    billy, remy = one(gone, SPANISH_MAN), one(gone, {"gender": "T"})
    asked = gone.request({"language": "Spanish", "gender": "F"}, caller_id="ann")
    assert asked is not None
    supervisor = desk.queue()
    assert supervisor.complete(supervisor.admin.held("Billy")).status is ResourceStatus.AVAILABLE
    assert supervisor.release(supervisor.admin.held("Remy")).status is ResourceStatus.QUEUED
    assert supervisor.complete(supervisor.admin.held("Christine")).status is ResourceStatus.AVAILABLE
    for match in (billy, remy, asked):
        with pytest.raises(LeaseLost):
            gone.complete(match)
    assert names(supervisor.match({}, limit=9)) == ["Remy", "Courtney", "Ellen"]
    with pytest.raises(LeaseLost):
        supervisor.admin.held("Billy")
    with pytest.raises(NotFound):
        supervisor.admin.held("nobody")
    # A forgotten caller may ask again, and waits.
    assert supervisor.request({"language": "Spanish", "gender": "F"}, caller_id="ann") is None


def test_the_remedies_that_refusals_name_work(desk: Desk) -> None:
    queue = desk.staffed()
    one(queue, SPANISH_MAN)
    for refusal in (
        lambda: queue.unregister("Billy"),
        lambda: queue.withdraw("Billy"),
        lambda: queue.offer("Billy"),
        lambda: queue.register("Billy", attributes={}),
    ):
        with pytest.raises(IllegalTransition, match="freshq match complete Billy --force") as refused_by:
            refusal()
    assert "queue.complete(queue.admin.held('Billy'))" in str(refused_by.value)
    queue.complete(queue.admin.held("Billy"))
    queue.unregister("Billy")
    with pytest.raises(IllegalTransition, match="withdraw it first"):
        queue.unregister("Ellen")
    queue.withdraw("Ellen")
    queue.unregister("Ellen")
    assert queue.get("Billy") is queue.get("Ellen") is None


def test_the_token_of_a_match_names_its_worker(desk: Desk) -> None:
    queue = desk.queue(worker_name="desk-3")
    join(queue, "Ellen", {"language": "French"})
    match = one(queue, {})
    assert match.token.startswith("desk-3:")
    queue.complete(queue.extend(match, lease_seconds=7200))
    for wrong in ("a:b", 5, b"desk"):
        with refused("worker_name"):
            desk.queue(worker_name=wrong)
