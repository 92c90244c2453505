"""The page in a browser, while a thousand tasks a second change, and under a user's clicks."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from freshq import Queue
from freshq.cli.dashboard.app import Shown
from freshq.cli.dashboard.live import LastHour
from freshq.cli.dashboard.server import Dashboard
from freshq.errors import RefusedError
from freshq.queue.queue import sibling
from tests.support.browser_fixtures import tab
from tests.support.patience import PATIENCE_SECONDS

MAX_AGE_SECONDS = 4.0
PUT_PER_SECOND = 600
CLAIMED_PER_SECOND = 400
TURN_SECONDS = 0.02
# A change is a put, or a claim with its end: as many as the two make together are shown as rates.
CHANGES_PER_SECOND = PUT_PER_SECOND + CLAIMED_PER_SECOND
EVIL = "<img src=x onerror=\"document.title='evil'\">"
SECRET_WORD = "only-on-request"


@dataclass
class Source:
    """Puts and serves tasks in a thread until stopped."""

    queue: Queue
    changes: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        began, put, claimed = time.monotonic(), 0, 0
        while not self._ended.wait(TURN_SECONDS):
            elapsed = time.monotonic() - began
            new = int(elapsed * PUT_PER_SECOND) - put
            self.queue.put_many([{"payload": SECRET_WORD, "group": f"desk-{n % 3}"} for n in range(new)])
            put += new
            served = self.queue.claim(max(1, int(elapsed * CLAIMED_PER_SECOND) - claimed))
            for claim in served:
                self.queue.complete(claim)
            claimed += len(served)
            self.changes = put + claimed


def until(page: Page, holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds in the page."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < give_up_at, what
        page.wait_for_timeout(50)


def number(page: Page, element: str) -> float:
    """Return a number that the page shows; -1 if it shows none."""
    text = page.inner_text(element).replace(",", "").split(" ")[-1]
    return float(text) if text.replace(".", "").isdigit() else -1


@pytest.fixture
def queue() -> Queue:
    return Queue.memory(max_age_seconds=MAX_AGE_SECONDS, name="quotes")


@pytest.fixture
def opened(browser: Browser, queue: Queue) -> Iterator[tuple[Page, str, list[str]]]:
    """Yield a page on the dashboard, its address, and what went wrong in it."""
    wrong: list[str] = []
    notes: dict[Any, Callable[[Any], None]] = {
        "pageerror": lambda error: wrong.append(str(error)),
        "console": lambda message: wrong.append(message.text) if message.type == "error" else None,
        "request": lambda request: None if "127.0.0.1" in request.url else wrong.append(request.url),
    }
    with tab(browser) as page, Dashboard(Shown(queue, every_seconds=0.2)).beside() as url:
        for event, note in notes.items():
            page.on(event, note)
        page.goto(url)
        page.wait_for_selector("#board:not([hidden])")
        yield page, url, wrong
        for event, note in notes.items():
            page.remove_listener(event, note)


def pixels(page: Page, canvas: str) -> dict[str, int]:
    """Count the pixels of a canvas that have about the colour of a fate."""
    counted: dict[str, int] = page.evaluate(
        """(selector) => {
          const canvas = document.querySelector(selector);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const fates = { pending: [0x56, 0xb4, 0xe9], shed: [0xe6, 0x9f, 0x00] };
          const counts = { pending: 0, shed: 0 };
          for (let at = 0; at < data.length; at += 4)
            for (const [fate, colour] of Object.entries(fates))
              if (data[at + 3] > 150 && colour.every((part, n) => Math.abs(part - data[at + n]) < 12))
                counts[fate]++;
          return counts;
        }""",
        canvas,
    )
    return counted


def test_a_task_in_work_shows_its_progress_and_can_be_cancelled(
    opened: tuple[Page, str, list[str]], queue: Queue
) -> None:
    page, _url, wrong = opened
    queue.put(SECRET_WORD, task_id="a")
    (claim,) = queue.claim()
    queue.extend(claim, lease_seconds=60, progress=0.29, step=EVIL)
    until(page, lambda: page.inner_text("#lease-rows .step") == f"29 %, {EVIL}", "no progress")
    page.click("#lease-rows button")
    until(page, lambda: f"29 %, {EVIL}" in page.inner_text("#task-facts"), "no progress of the task")
    page.click("#task-actions button:has-text('Cancel')")
    page.click("#ask button[value=yes]")
    until(page, lambda: queue.stats().cancelled == 1, "it is not cancelled")
    until(page, lambda: page.inner_text("#task-status") == "CANCELLED", "the page does not show it")
    assert wrong == []


def frames_of_a_second(page: Page) -> int:
    """Return how many frames a page draws within a second."""
    frames: int = page.evaluate(
        """() => new Promise((resolve) => {
          let frames = 0;
          const began = performance.now();
          const count = () => {
            frames++;
            if (performance.now() - began < 1000) requestAnimationFrame(count);
            else resolve(frames);
          };
          requestAnimationFrame(count);
        })"""
    )
    return frames


def test_a_thousand_changes_a_second(opened: tuple[Page, str, list[str]], queue: Queue) -> None:
    page, _url, wrong = opened
    source = Source(queue)
    with source.running():
        until(page, lambda: source.changes > 2 * CHANGES_PER_SECOND, "the source is too slow")
        until(page, lambda: number(page, "#waiting") > 100, "no task waits")
        until(page, lambda: number(page, "#offered") > PUT_PER_SECOND / 4, "nothing is offered")
        until(page, lambda: number(page, "#served") > CLAIMED_PER_SECOND / 4, "nothing is served")
        until(page, lambda: pixels(page, "#stack")["pending"] > 2000, "no marks are drawn")
        until(page, lambda: number(page, "#shed") >= 0, "what is not served is not told")
        until(page, lambda: frames_of_a_second(page) > 1, "the page is frozen")
        until(
            page,
            lambda: "waiting, the newest" in str(page.get_attribute("#stack", "aria-label")),
            "the text is old",
        )
        assert page.inner_text("#group-rows").count("desk-") == 3
    assert wrong == []
    assert SECRET_WORD not in page.content()


def test_tasks_fall_over_the_line(opened: tuple[Page, str, list[str]], queue: Queue) -> None:
    page, _url, wrong = opened
    line = pixels(page, "#stack")["shed"]

    def drawn() -> bool:
        if queue.stats().pending == 0:  # even if a busy machine did not draw the last marks in time
            queue.put_many([{"payload": n} for n in range(200)])
        return pixels(page, "#stack")["pending"] > 1000

    until(page, drawn, "no marks are drawn")
    until(page, lambda: pixels(page, "#stack")["shed"] > line + 1000, "none falls")
    until(page, lambda: pixels(page, "#stack")["pending"] == 0, "marks stay after their deadline")
    until(
        page, lambda: "No waiting tasks" in str(page.get_attribute("#stack", "aria-label")), "the text is old"
    )
    assert wrong == []


def test_text_of_tasks_is_never_markup(opened: tuple[Page, str, list[str]], queue: Queue) -> None:
    page, _url, wrong = opened
    queue.put(SECRET_WORD, task_id=EVIL, group=EVIL, kind="mail")
    queue.fail(queue.claim()[0], error=EVIL)
    queue.put(SECRET_WORD, task_id="waits", group=EVIL)
    queue.pause()
    page.select_option("#list-status", "FAILURE")
    page.click("#list button")
    page.click(f"#found-rows button:has-text('{EVIL[:8]}')")
    until(page, lambda: page.inner_text("#task-id") == EVIL, "the task is not shown")
    assert SECRET_WORD not in page.content()
    page.click("#task-actions button:has-text('Show payload')")
    until(page, lambda: SECRET_WORD in page.inner_text("#task-contents"), "the payload is not shown")
    page.keyboard.press("Escape")
    until(page, lambda: SECRET_WORD not in page.content(), "the payload stays in the page")
    assert page.locator("main img, dialog img").count() == 0
    assert page.title() == "freshq: quotes"
    assert wrong == []


def buried_in_time(queue: Queue, task_id: str) -> bool:
    """Put a task that is soon past its deadline, and bury it; return whether it was before that."""
    queue.put("work", task_id=task_id, max_age_seconds=0.5)
    try:
        queue.cancel(task_id, dead=True)
    except RefusedError:
        return False
    return True


# Pixels between an element and the edge of the box that clips it.
ROOM_LEFT: Final = """selector => {
  const found = document.querySelector(selector);
  return found.getBoundingClientRect().left - found.closest(".scroll").getBoundingClientRect().left;
}"""


def test_an_operator_pauses_redrives_and_deletes_by_keyboard(
    opened: tuple[Page, str, list[str]], queue: Queue
) -> None:
    page, _url, wrong = opened
    for task_id in ("one", "two"):
        queue.put("work", task_id=task_id)
        queue.fail(queue.claim()[0], error="the downstream said 503")
    page.focus("#pause")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#pause") == "Resume", "not paused")
    assert queue.paused()
    assert page.inner_text("#chip-state") == "paused"
    page.wait_for_selector(".scroll .link")
    assert page.evaluate(ROOM_LEFT, ".scroll .link") >= 5, "the ring of the focus is cut off"
    page.focus("button[aria-label='Redrive one']")
    page.keyboard.press("Enter")
    until(page, lambda: queue.stats().pending == 1, "not redriven")
    page.focus("button[aria-label='Delete two']")
    page.keyboard.press("Enter")
    assert page.inner_text("#ask-text") == "Delete dead letter two? This cannot be undone."
    page.keyboard.press("Escape")
    assert queue.get("two") is not None
    page.focus("button[aria-label='Delete two']")
    page.keyboard.press("Enter")
    page.click("#ask-yes")
    until(page, lambda: queue.get("two") is None, "not deleted")
    until(page, lambda: "was deleted" in page.inner_text("#said"), "it is not said")
    until(page, lambda: buried_in_time(queue, "late"), "it is not buried")
    page.wait_for_selector("button[aria-label='Redrive as new late']")
    page.focus("button[aria-label='Redrive as new late']")
    page.keyboard.press("Enter")
    until(page, lambda: queue.stats().pending == 2, "not redriven")
    assert wrong == []
    page.fill("#find-id", "nobody")
    page.keyboard.press("Enter")
    until(page, lambda: "nobody" in page.inner_text("#find-said"), "it is not said where it was asked")


def test_without_the_token_nothing_is_shown(browser: Browser, queue: Queue) -> None:
    with tab(browser) as page, Dashboard(Shown(queue)).beside() as url:
        page.goto(url.partition("#")[0])
        page.wait_for_selector("#gate:not([hidden])")
        assert not page.is_visible("#board")
        assert "quotes" not in page.content()
        page.fill("#gate-token", url)
        page.press("#gate-token", "Enter")
        page.wait_for_selector("#board:not([hidden])")
        assert page.inner_text("#queue-name") == "quotes"
        assert "token" not in page.url


def test_the_token_leaves_the_address_and_stays_for_a_reload(opened: tuple[Page, str, list[str]]) -> None:
    page, url, wrong = opened
    assert page.url == url.partition("#")[0]
    page.reload()
    page.wait_for_selector("#board:not([hidden])")
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.matrix
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_any_width_in_light_and_dark(browser: Browser, queue: Queue, scheme: Any, width: int) -> None:
    queue.put("work", task_id="an-id-" + "x" * 120, group="a group of a long name " * 3)
    queue.fail(queue.claim()[0], error="an-error-without-blanks-" * 20)
    queue.put("work", task_id="b" * 150, group="g" * 100)
    queue.claim()
    dashboard = Dashboard(Shown(queue, every_seconds=0.2))
    with tab(browser, width=width, color_scheme=scheme) as page, dashboard.beside() as url:
        page.goto(url)
        until(page, lambda: "an-id" in page.inner_text("#dead-rows"), "no dead letter")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(244, 246, 248)" if scheme == "light" else "rgb(13, 18, 24)")


def bury(queue: Queue, task_id: str, error: str, kind: str | None = None) -> None:
    """Make a dead letter that does not become stale during a test."""
    queue.put("work", task_id=task_id, kind=kind)
    queue.cancel(task_id, dead=True, error=error)


@pytest.fixture
def lasting(browser: Browser) -> Iterator[tuple[Page, Queue]]:
    """Yield a page on a queue whose tasks do not become stale."""
    queue = Queue.memory(max_age_seconds=None, name="quotes")
    dashboard = Dashboard(Shown(queue, every_seconds=0.05, address="sqlite:///q.db"))
    with tab(browser) as page, dashboard.beside() as url:
        page.goto(url)
        page.wait_for_selector("#board:not([hidden])")
        yield page, queue


def test_a_row_that_would_move_under_a_press_waits_for_the_click(lasting: tuple[Page, Queue]) -> None:
    page, queue = lasting
    letter = "letter"
    bury(queue, letter, "no answer")
    for number in range(1, 5):
        button = page.locator(f"button[aria-label='Redrive {letter}']")
        button.scroll_into_view_if_needed()
        box = button.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        for more in range(
            25
        ):  # each at the top, until the pressed row has left the list; snapshots come every 50 ms
            letter = f"letter-{number}-{more}"
            bury(queue, letter, "no answer")
            page.wait_for_timeout(8)
        page.mouse.up()
        until(page, lambda expected=number: queue.stats().pending == expected, "the click was lost")  # type: ignore[misc]


def test_rows_change_in_place_so_a_selection_stays(lasting: tuple[Page, Queue]) -> None:
    page, queue = lasting
    bury(queue, "letter", "no answer from 1", kind="mail")
    page.wait_for_selector("#dead-rows .error")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#dead-rows .error'))")
    page.focus("button[aria-label='Delete letter']")
    page.evaluate("document.querySelector('#dead-rows tr').dataset.mark = 'the same row'")
    bury(queue, "later letter", "no answer from 2", kind="mail")
    until(page, lambda: page.locator("#dead-rows tr").count() == 2, "the second is not shown")
    assert page.evaluate("String(getSelection())") == "no answer from 1"
    assert page.evaluate("document.activeElement.ariaLabel") == "Delete letter"
    assert page.inner_text("#dead-rows tr >> nth=1").startswith("letter")


def test_value_delivered_and_lost_is_shown_if_tasks_have_values(lasting: tuple[Page, Queue]) -> None:
    page, queue = lasting
    queue.put("plain")
    queue.complete(queue.claim()[0])
    until(page, lambda: "done 1" in page.inner_text("#fates"), "no outcome")
    assert not page.is_visible("#value-tile")
    assert not page.is_visible("#values")
    for value in (40, 10):
        queue.put("work", value=value)
    queue.fail(queue.claim()[0])
    queue.complete(queue.claim()[0])
    page.wait_for_selector("#value-tile:not([hidden])")
    sums = "Value: 41.0 delivered, 10.0 lost (20%)."
    until(page, lambda: page.inner_text("#values") == sums, "no values")
    assert page.is_visible("#values")
    assert page.inner_text("#value-note").endswith("% lost")
    for width in (360, 800, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_empty_queue_shows_the_first_command(lasting: tuple[Page, Queue]) -> None:
    page, queue = lasting
    page.wait_for_selector("#empty:not([hidden])")
    command = page.inner_text("#first-command")
    assert command == 'freshq put \'{"hello": "world"}\' --queue sqlite:///q.db --name quotes'
    queue.put("work")
    page.wait_for_selector("#empty", state="hidden")


def test_a_cause_is_found_understood_and_redriven(lasting: tuple[Page, Queue]) -> None:
    page, queue = lasting
    for number in range(120):
        bury(queue, f"mail-{number}", f"no answer after {number} s", kind="mail")
    for number in range(3):
        bury(queue, f"quote-{number}", "KeyError: 'ABC'", kind="quote")
    until(page, lambda: "123 dead letters" in page.inner_text("#causes-note"), "they are not counted")
    assert page.inner_text("#cause-rows tr >> nth=0").startswith("120")
    page.click("#cause-rows .link >> nth=1")
    until(page, lambda: page.locator("#found-rows tr").count() == 3, "its tasks are not listed")
    page.click("#cause-rows button:has-text('Redrive') >> nth=0")
    assert "120 dead letters with the error" in page.inner_text("#ask-text")
    page.click("#ask-yes")
    until(page, lambda: queue.stats().pending == 120, "not all are redriven")
    until(page, lambda: "120 dead letters returned" in page.inner_text("#redrive-said"), "it is not said")
    until(page, lambda: "3 dead letters" in page.inner_text("#causes-note"), "the causes are old")


def test_the_first_page_lists_several_queues(browser: Browser) -> None:
    mail = Queue.memory(name="mail")
    quotes = sibling(mail, name="quotes")
    for queue in (mail, quotes):
        queue.put("work", task_id=queue.name)
    with tab(browser) as page:
        with Dashboard(Shown(mail, every_seconds=0.2)).beside() as url:
            page.goto(url)
            page.click("#queue-rows a:has-text('quotes')")
            page.wait_for_selector("#board:not([hidden])")
            assert page.inner_text("#queue-name") == "quotes"
            page.click("#pause")
            until(page, quotes.paused, "the queue is not paused")
            assert not mail.paused()
            page.click("#all-queues")
            until(page, lambda: page.locator("#queue-rows tr").count() == 2, "no list")
        until(page, lambda: page.locator("#queues.stale").count() == 1, "the loss is not told")


def test_charts_reach_back_an_hour(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = Queue.memory(name="mail")
    sibling(mail, name="quotes").put("work")
    now_ms = round(mail.admin.now() * 1000)
    rates = {"offered": 9.0, "served": 5.0, "shed": 0.0, "waiting": 7}
    points = [{"at_ms": now_ms - 1000 * ago, **rates} for ago in range(3590, 0, -10)]
    monkeypatch.setattr(LastHour, "points", lambda _self: points)
    monkeypatch.setattr(LastHour, "trend", lambda _self: [1, None, 9, 3])
    dashboard = Dashboard(Shown(mail, every_seconds=0.2))
    with tab(browser) as page, dashboard.beside() as url:
        page.goto(url)
        page.wait_for_selector("#queue-rows .trend")
        said = page.get_attribute("#queue-rows .trend >> nth=0", "aria-label")
        assert said == "waiting in the last hour: first 1, at most 9, now 3"
        page.click("#queue-rows a:has-text('mail')")
        until(
            page,
            lambda: "over the last 1\xa0h" in str(page.get_attribute("#rates", "aria-label")),
            "the chart is short",
        )


def test_headings_labels_and_landmarks(opened: tuple[Page, str, list[str]]) -> None:
    page, _url, _wrong = opened
    assert page.locator("h1").count() == 1
    assert page.get_by_role("main").count() == page.get_by_role("banner").count() == 1
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, canvas, section, [role=region]")]
          .filter((one) => one.checkVisibility())
          .filter((one) => !(one.textContent.trim() && one.tagName === "BUTTON") && !one.labels?.length)
          .filter((one) => !one.getAttribute("aria-label") && !one.getAttribute("aria-labelledby"))
          .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    named = page.evaluate(
        """() => [...document.querySelectorAll("section, [role=region], [role=search]")]
          .map((one) => one.getAttribute("aria-label") ?? one.getAttribute("aria-labelledby"))"""
    )
    assert len(set(named)) == len(named), "each landmark has a name of its own"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_a_lost_connection_is_told(browser: Browser, queue: Queue) -> None:
    with tab(browser) as page:
        with Dashboard(Shown(queue, every_seconds=0.2)).beside() as url:
            page.goto(url)
            page.wait_for_selector("#board:not([hidden])")
            assert page.locator("#board.stale").count() == 0
        until(page, lambda: "connection" in page.inner_text("#chip-state"), "the loss is not told")
        assert page.locator("#board.stale").count() == 1
        assert "No connection" in page.inner_text("#problem")
