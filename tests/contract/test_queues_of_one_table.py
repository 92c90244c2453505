"""Several queues in the same tables, on the same connections."""

from freshq.queue.core import core_of
from freshq.queue.queue import sibling
from tests.conftest import StoreUnderTest
from tests.support.readings import ids


def test_a_sibling_has_tasks_and_options_of_its_own(store: StoreUnderTest) -> None:
    mail = store.queue(name="mail")
    quotes = sibling(mail, name="quotes", clock=store.clock, max_age_seconds=5)
    mail.put("work", task_id="a")
    quotes.put("work", task_id="b")
    assert (quotes.name, quotes.admin.config.max_age_seconds) == ("quotes", 5)
    assert ids(quotes.claim(5)) == ["b"]
    quotes.close()
    assert ids(mail.claim(5)) == ["a"]


def test_names_of_queues_are_listed_where_the_store_can_tell(store: StoreUnderTest) -> None:
    for name in ("quotes", "mail", "a"):
        store.queue(name=name).put("work", task_id=f"task of {name}")
    (claim,) = store.queue(name="mail").claim()
    store.queue(name="mail").fail(claim, error="no answer")
    found = core_of(store.queue()).store.queue_names()
    assert found == ([] if store.kind.startswith("dynamodb") else ["a", "mail", "quotes"])
