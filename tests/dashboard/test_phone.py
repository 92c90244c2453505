"""The page at the width of a phone and of a desk, by measurement, with long names, errors and many causes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from freshq import Queue
from freshq.cli.dashboard.app import Shown
from freshq.cli.dashboard.server import Dashboard
from freshq.cli.dashboard.snapshots import EVERY_SECONDS
from freshq.queue.queue import sibling
from tests.conftest import Clock
from tests.dashboard.test_page import until
from tests.support.browser_fixtures import tab

WIDTHS = (360, 412, 1280)
HEIGHT = 780
MAX_AGE_SECONDS = 3600.0
NAME = "pricing-recalculation-after-market-data-correction-eu-central"
KINDS = ("invoice_rendering_for_enterprise_customers", "mail.transactional.password_reset", "quote")
GROUPS = ("tenant-acme-international-holdings-gmbh", "a-really-long-subdomain.example.com", None)
ERRORS = (
    (
        "ConnectionError: HTTPSConnectionPool(host='payments.internal.example.com', port=443): Max retries "
        "exceeded with url: /v2/charges/batch (Caused by ConnectTimeoutError)"
    ),
    "KeyError: 'customer_reference'",
    "an-error-without-blanks-" * 12,
)
LETTERS = 24
STALE_EVERY = 4
# An error shows at least this many letters in a line.
ERROR_CHARS = 30


def letter_id(number: int) -> str:
    return f"order-2024-11-28-{number:04d}-reprice-customer-{number * 7919}"


def bury(queue: Queue, task_id: str, error: str, **fields: Any) -> None:
    queue.put({"n": 1}, task_id=task_id, **fields)
    queue.cancel(task_id, dead=True, error=error)


@pytest.fixture
def queue(clock: Clock) -> Queue:
    """Return a queue with tasks in every state; some of its dead letters cannot be redriven."""
    queue = Queue.memory(clock=clock, max_age_seconds=MAX_AGE_SECONDS, name=NAME, order="fifo")
    for number in range(LETTERS):
        # One cause has stale letters alone, others have some.
        error = (
            "all are too late"
            if number % STALE_EVERY == 0
            else ERRORS[number % 3] + " " + "abcdefgh"[number % 8]
        )
        own = {"max_age_seconds": 1.0} if number % STALE_EVERY in (0, 1) else {}
        bury(queue, letter_id(number), error, kind=KINDS[number % 3], group=GROUPS[number % 3], **own)
    clock.advance(2)
    for number in range(40):
        queue.put(
            number, task_id=f"wait-{letter_id(number)}", kind=KINDS[number % 3], group=GROUPS[number % 3]
        )
    # None is done: a forecast takes seconds on a busy machine, and snapshots then come rarely.
    for claim in queue.claim(6):
        queue.extend(claim, lease_seconds=300, progress=0.4, step="rendering pages 14 to 99 of the statement")
    return queue


@contextmanager
def shown(browser: Browser, queue: Queue, width: int, **options: Any) -> Iterator[Page]:
    """Yield a page on a queue that has shown its dead letters."""
    dashboard = Dashboard(Shown(queue, every_seconds=0.1, **options))
    with tab(browser, width=width, height=HEIGHT) as page, dashboard.beside() as url:
        page.goto(url)
        page.wait_for_selector("#dead-rows .error")
        yield page


OUTSIDE = """() => [...document.querySelectorAll("body *")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().width)
  .filter((one) => {
    const { left, right } = one.getBoundingClientRect();
    return left < -0.5 || right > innerWidth + 0.5;
  })
  .map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""
# A button is cut by its own text, or by what clips it at a side.
CUT = """() => [...document.querySelectorAll("button, a, select, input, summary")]
  .filter((one) => one.checkVisibility() && !one.matches(".skip"))
  .filter((one) => {
    const { left, right } = one.getBoundingClientRect();
    if (one.tagName === "BUTTON" && one.scrollWidth > one.clientWidth + 1) return true;
    for (let at = one.parentElement; at !== document.documentElement; at = at.parentElement) {
      const box = at.getBoundingClientRect();
      const clips = getComputedStyle(at).overflowX !== "visible";
      if (clips && (left < box.left - 0.5 || right > box.right + 0.5)) return true;
    }
    return false;
  })
  .map((one) => one.getAttribute("aria-label") ?? one.textContent)"""
SIDEWAYS = """() => [...document.querySelectorAll(".scroll, dialog, main")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth).map((one) => one.className)"""
NARROW = f"""() => {{
  const ruler = document.createElement("span");
  ruler.textContent = "0".repeat({ERROR_CHARS});
  return [...document.querySelectorAll("td:has(> .error, > .cause)")].filter((cell) => {{
    cell.append(ruler);
    ruler.style.cssText = "position: absolute; white-space: nowrap";
    const wanted = ruler.getBoundingClientRect().width;
    ruler.remove();
    return cell.getBoundingClientRect().width < wanted;
  }}).map((cell) => cell.textContent);
}}"""


def assert_nothing_is_cut(page: Page) -> None:
    for wrong in (OUTSIDE, CUT, SIDEWAYS, NARROW):
        assert page.evaluate(wrong) == []


@pytest.mark.matrix("width")
@pytest.mark.parametrize(
    ("width", "is_paused"), [*((width, False) for width in (*WIDTHS, 700, 780, 1001)), (360, True)]
)
def test_nothing_is_cut(browser: Browser, queue: Queue, width: int, *, is_paused: bool) -> None:
    if is_paused:
        queue.pause()
    with shown(browser, queue, width) as page:
        until(page, lambda: page.inner_text("#chip-state") == ("paused" if is_paused else "live"), "no state")
        assert_nothing_is_cut(page)
        page.click("#stack-text ~ details summary")
        page.click("#cause-rows .link >> nth=0")
        page.wait_for_selector("#found-rows button")
        assert_nothing_is_cut(page)
        page.click("#dead-rows .link >> nth=0")
        page.wait_for_selector("#task[open]")
        assert_nothing_is_cut(page)


@pytest.mark.matrix
@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_queues_fits(browser: Browser, queue: Queue, width: int) -> None:
    sibling(queue, name="mail").put("work")
    dashboard = Dashboard(Shown(queue, every_seconds=0.1))
    with tab(browser, width=width, height=HEIGHT) as page, dashboard.beside() as url:
        page.goto(url)
        page.wait_for_selector(f"#queue-rows a:has-text('{NAME}')")
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(CUT) == []


def in_view(page: Page, selector: str) -> bool:
    """Return whether an element is where one can see it."""
    return bool(
        page.evaluate(
            """(selector) => {
              const box = document.querySelector(selector).getBoundingClientRect();
              const seen = document.elementFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
              return box.top >= 0 && box.bottom <= innerHeight && seen?.closest(selector) !== null;
            }""",
            selector,
        )
    )


@pytest.mark.matrix("width")
@pytest.mark.parametrize("which", [0, 3, -1])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_cause_opens_where_it_was_clicked(browser: Browser, queue: Queue, width: int, which: int) -> None:
    with shown(browser, queue, width) as page:
        cause = page.locator("#cause-rows .cause").nth(which)
        error = cause.inner_text()
        cause.click()
        first = page.locator("#cause-rows .open #found-rows button").first
        first.wait_for()
        until(page, lambda: in_view(page, "#cause-rows .open #found-rows button"), "the list is not in view")
        until(page, lambda: in_view(page, ".cause[aria-expanded=true]"), "the cause is not in view")
        above = page.evaluate("document.querySelector('tr.open').previousElementSibling.innerText")
        assert error in above, "the list is under another row"
        bury(queue, "later", "KeyError: 'another'")
        page.wait_for_selector("#dead-rows button[aria-label$=later]")
        assert page.evaluate("document.activeElement.closest('tr.open') !== null"), (
            "a snapshot took the focus"
        )
        cause.click()
        page.wait_for_selector("#found", state="hidden")
        assert page.locator("tr.open").count() == 0


def test_an_open_cause_closes_when_it_is_gone_and_the_list_is_at_its_form_again(
    browser: Browser, queue: Queue, clock: Clock
) -> None:
    with shown(browser, queue, WIDTHS[0]) as page:
        page.click("#cause-rows .cause:has-text('KeyError') >> nth=0")
        page.wait_for_selector("tr.open #found-rows button")
        queue.purge(status="FAILURE", confirm=queue.name)
        clock.advance(EVERY_SECONDS)
        page.wait_for_selector("tr.open", state="detached")
        page.select_option("#list-status", "TAKEN")
        page.click("#list button")
        until(page, lambda: page.locator("#found-rows tr").count() == 6, "not listed")
        assert page.evaluate(
            "document.querySelector('#found').closest('section').querySelector('#find') !== null"
        )
        assert page.locator("section:has(#find) #found-rows tr").count() == 6


def test_another_cause_takes_the_list_along(browser: Browser, queue: Queue) -> None:
    with shown(browser, queue, WIDTHS[0]) as page:
        for number in (0, 2, 1):
            page.locator("#cause-rows .cause").nth(number).click()
            page.wait_for_selector(f"#cause-rows > tr:nth-child({number + 2}).open #found-rows button")
            assert page.locator("tr.open").count() == page.locator(".cause[aria-expanded=true]").count() == 1


@dataclass(frozen=True)
class Case:
    """A dead letter, and whether it can be redriven with its own deadline."""

    name: str
    max_age_seconds: float | None
    after_seconds: float
    redrivable: bool


@pytest.mark.parametrize(
    "case",
    [
        Case("fresh", None, 10, redrivable=True),
        Case("stale by its own max age", 5, 10, redrivable=False),
        Case("stale by the max age of the queue", None, MAX_AGE_SECONDS + 10, redrivable=False),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.matrix("width")
@pytest.mark.parametrize("width", [360, 1280])
def test_redrive_is_offered_where_it_is_not_refused(
    browser: Browser, clock: Clock, case: Case, width: int
) -> None:
    queue = Queue.memory(clock=clock, max_age_seconds=MAX_AGE_SECONDS)
    own = {} if case.max_age_seconds is None else {"max_age_seconds": case.max_age_seconds}
    bury(queue, "letter", "no answer", **own)
    with shown(browser, queue, width) as page:
        page.wait_for_selector("#cause-rows button:text-is('Redrive')")
        clock.advance(case.after_seconds)  # the page is open while the letter becomes stale
        wanted = 1 if case.redrivable else 0
        places = ("#cause-rows", "#dead-rows")
        until(
            page,
            lambda: all(page.locator(f"{at} button:text-is('Redrive')").count() == wanted for at in places),
            "Redrive is offered where it is refused, or is missing",
        )
        assert page.is_visible("#redrive-all") is case.redrivable
        for place in places:
            as_new = page.locator(f"{place} button:text-is('Redrive as new')").count()
            assert as_new == 1 - wanted, place
        page.click("#dead-rows .link")
        page.wait_for_selector("#task[open]")
        assert page.locator("#task-actions button:text-is('Redrive')").count() == wanted
        page.click(f"#task-actions button:text-is('{'Redrive' if case.redrivable else 'Redrive as new'}')")
        until(page, lambda: queue.stats().pending == 1, "it was refused")
        offered = page.locator("#task-actions button:has-text('Redrive')")
        until(
            page, lambda: offered.all_inner_texts() == ["Redrive as new"], "it waits, and cannot be redriven"
        )


def test_a_page_that_may_not_change_has_no_buttons_that_are_refused(browser: Browser, queue: Queue) -> None:
    with shown(browser, queue, WIDTHS[0], changes=False) as page:
        page.click("#dead-rows .link >> nth=0")
        page.wait_for_selector("#task[open]")
        refused = re.compile("Redrive|Delete|Cancel|Pause|Resume")
        visible = [one.inner_text() for one in page.locator("button").all() if one.is_visible()]
        assert not [text for text in visible if refused.match(text)]


@pytest.mark.matrix
@pytest.mark.parametrize("served_of_six", [1, 2, 4, 6])
def test_the_tile_and_the_forecast_agree(browser: Browser, clock: Clock, served_of_six: int) -> None:
    queue = Queue.memory(clock=clock, max_age_seconds=30)
    for _ in range(60):
        queue.put_many([{"payload": number} for number in range(6)])
        held = queue.claim(limit=served_of_six)
        clock.advance(1)
        for claim in held:
            queue.complete(claim)
    dashboard = Dashboard(Shown(queue, every_seconds=0.1))
    with tab(browser, width=WIDTHS[0], height=HEIGHT) as page, dashboard.beside() as url:
        page.goto(url)
        page.wait_for_selector("#forecast-rows th")

        def agree() -> bool:
            tile, row = page.evaluate(
                """['#in-time', '#forecast-rows tr:first-child td']
                  .map((at) => document.querySelector(at).textContent)"""
            )
            return bool(row.startswith(f"{tile} ("))

        assert agree()
        waits = page.evaluate("document.querySelector('#waiting').textContent") != "0"
        assert ("waiting now" in page.inner_text("#forecast-rows")) is waits
        queue.pause()
        until(
            page,
            lambda: page.inner_text("#in-time") == "\u2013",
            "it promises what a paused queue does not do",
        )
        assert page.locator("#forecast-rows th").count() == 0
        queue.resume()
        page.wait_for_selector("#forecast-rows th")
        assert agree()
