"""The dashboard's server: access, answers and changes."""

import asyncio
import json
import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from freshq import Queue
from freshq.cli.dashboard import live as live_module
from freshq.cli.dashboard.app import STATIC, Shown, application
from freshq.cli.dashboard.live import KEPT_SECONDS, STEP_SECONDS, LastHour, Live
from freshq.cli.dashboard.server import Dashboard
from freshq.cli.dashboard.snapshots import PageWatcher
from freshq.cli.main import app as command
from freshq.cli.session import AUDIT
from freshq.errors import RefusedError
from freshq.feeds.schedules import Every, Schedule
from freshq.queue.core import core_of
from freshq.queue.queue import sibling
from freshq.simulate.sweep import Colour
from freshq.testing import FaultyStore
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until

GIVEN = "given-at-the-start"
HERE = "http://127.0.0.1:8710"
API = ("/api/queue", "/api/live", "/api/schedules", "/api/tasks", "/api/task?id=a", "/api/contents?id=a")


@dataclass
class Client:
    """Calls an application in this process, over no network."""

    app: Any
    headers: dict[str, str]

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=HERE, headers=self.headers) as client:
                return await client.request(method, path, **more)

        return asyncio.run(call())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)


@dataclass
class Page:
    """A page of a dashboard, with the token."""

    queue: Queue
    client: Client

    def do(self, verb: str, **more: Any) -> httpx.Response:
        return self.client.post("/api/do", json={"verb": verb, **more})


def page(queue: Queue, token: str | None = GIVEN, **options: Any) -> Page:
    app, _live = application(Shown(queue, **options), {"127.0.0.1", "localhost"}, GIVEN)
    headers = {} if token is None else {"X-Freshq-Token": token}
    return Page(queue, Client(app, headers))


@pytest.fixture
def queue(clock: Clock) -> Queue:
    queue = Queue.memory(clock=clock, max_age_seconds=60, name="quotes")
    queue.put({"secret": 1}, task_id="a", group="desk")
    queue.put({"secret": 2}, task_id="dead", priority=5)
    queue.fail(queue.claim()[0], error="<b>no symbol</b>")
    return queue


@pytest.fixture
def shown(queue: Queue) -> Page:
    return page(queue)


class TestAccess:
    @pytest.mark.parametrize("path", [*API[:1], *API[2:]])
    @pytest.mark.parametrize("token", [None, "", "wrong", GIVEN + "x", "né"])
    def test_no_token_reads_nothing(self, queue: Queue, path: str, token: str | None) -> None:
        headers = {} if token is None else {"X-Freshq-Token": token.encode()}
        answer = page(queue, None).client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.json().keys() == {"error"}
        assert "secret" not in answer.text

    def test_no_token_changes_nothing(self, queue: Queue) -> None:
        for token in (None, "wrong"):
            assert page(queue, token).do("pause").status_code == 401
            assert page(queue, token).do("cancel", id="a").status_code == 401
        assert not queue.paused()
        assert queue.stats().cancelled == 0

    @pytest.mark.parametrize(
        "host", ["evil.example", "127.0.0.1.evil.example:8710", "", "[::1", "localhost.evil:8710", "@evil"]
    )
    def test_a_foreign_host_is_refused(self, shown: Page, host: str) -> None:
        for path in ("/", "/static/main.js", "/api/queue"):
            assert shown.client.get(path, headers={"Host": host}).status_code == 421
        pause = shown.client.post("/api/do", json={"verb": "pause"}, headers={"Host": host})
        assert (pause.status_code, shown.queue.paused()) == (421, False)

    @pytest.mark.parametrize(
        "origin",
        [
            "https://evil.example",
            "http://127.0.0.1:9999",
            "null",
            "http://localhost:8710",
            "file://",
            "http://[",
        ],
    )
    def test_a_foreign_origin_is_refused(self, shown: Page, origin: str) -> None:
        assert shown.client.get("/api/queue", headers={"Origin": origin}).status_code == 403
        pause = shown.client.post("/api/do", json={"verb": "pause"}, headers={"Origin": origin})
        assert (pause.status_code, shown.queue.paused()) == (403, False)

    @pytest.mark.parametrize("host", ["127.0.0.1:8710", "localhost:4000", "LOCALHOST"])
    def test_its_own_page_is_admitted(self, shown: Page, host: str) -> None:
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert shown.client.post("/api/do", json={"verb": "pause"}, headers=headers).status_code == 200
        assert shown.queue.paused()

    def test_its_own_address_is_a_known_host_name(self, queue: Queue) -> None:
        with Dashboard(Shown(queue), "127.0.0.2").beside() as url:
            assert httpx.get(url, timeout=PATIENCE_SECONDS).status_code == 200

    @pytest.mark.parametrize(
        "path", ["/", "/static/main.js", "/palette.css", "/api/queue", "/nothing", "/api/do"]
    )
    def test_every_answer_has_the_headers(self, shown: Page, path: str) -> None:
        for token in (GIVEN, "wrong"):
            headers = shown.client.get(path, headers={"X-Freshq-Token": token}).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in headers

    def test_only_get_reads_and_only_post_changes(self, shown: Page) -> None:
        assert shown.client.get("/api/do").status_code == 405
        assert shown.client.post("/api/task?id=a").status_code == 405
        assert shown.client.get("/static/../app.py").status_code == 404
        assert shown.client.get("/static/%2e%2e/app.py").status_code == 404

    def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_script(self) -> None:
        text = "".join(file.read_text("utf-8") for file in STATIC.iterdir())
        assert {*re.findall(r"\w+://[^\s\"]*", text)} == {"http://www.w3.org/2000/svg"}, (
            "the name of a format"
        )
        html = (STATIC / "index.html").read_text("utf-8")
        assert "<script>" not in html
        assert " style=" not in html
        assert " onclick=" not in html
        assert "innerHTML" not in text


class TestReading:
    def test_the_queue_is_described(self, shown: Page) -> None:
        found = shown.client.get("/api/queue").json()
        assert (found["name"], found["order"], found["max_age_seconds"]) == ("quotes", "lifo", 60)
        assert (found["changes"], found["has_deadline"], found["has_schedules"]) == (True, True, False)

    def test_a_task_is_shown_without_its_payload_until_asked(self, shown: Page) -> None:
        task = shown.client.get("/api/task", params={"id": "a"})
        assert (task.json()["task_id"], task.json()["status"]) == ("a", "PENDING")
        assert "secret" not in task.text
        assert shown.client.get("/api/contents", params={"id": "a"}).json()["payload"] == {"secret": 1}

    def test_tasks_are_listed_by_status_in_pages(self, shown: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("freshq.cli.dashboard.app.LISTED_TASKS", 2)
        shown.queue.put_many([{"payload": "secret", "task_id": f"t{n}"} for n in range(3)])
        first = shown.client.get("/api/tasks", params={"status": "PENDING"}).json()
        rest = shown.client.get("/api/tasks", params={"status": "PENDING", "cursor": first["cursor"]})
        assert [row["task_id"] for row in first["rows"] + rest.json()["rows"]] == ["a", "t0", "t1", "t2"]
        assert "secret" not in rest.text
        assert [row["task_id"] for row in shown.client.get("/api/tasks?status=FAILURE").json()["rows"]] == [
            "dead"
        ]

    def test_what_is_wrong_is_said(self, shown: Page) -> None:
        missing = shown.client.get("/api/task?id=nobody")
        assert (missing.status_code, "nobody" in missing.json()["error"]) == (404, True)
        assert shown.client.get("/api/tasks?status=LOST").status_code == 400
        assert shown.client.get("/api/task").status_code == 400

    def test_the_queues_of_the_tables_are_listed_and_each_is_served(self, queue: Queue) -> None:
        mail = sibling(queue, name="mail")
        mail.put("work", task_id="of mail")
        shown = page(queue)
        rows = shown.client.get("/api/queues").json()["rows"]
        assert [(row["name"], row["stats"]["pending"]) for row in rows] == [("mail", 1), ("quotes", 1)]
        assert rows[1]["stats"]["failure"] == 1
        assert shown.client.get("/api/queue").json()["name"] == "quotes"
        assert shown.client.get("/api/queue?queue=mail").json()["name"] == "mail"
        assert [row["task_id"] for row in shown.client.get("/api/tasks?queue=mail").json()["rows"]] == [
            "of mail"
        ]
        assert shown.client.post("/api/do?queue=mail", json={"verb": "pause"}).status_code == 200
        assert (mail.paused(), queue.paused()) == (True, False)
        assert shown.client.get("/api/queue?queue=nobody").status_code == 404

    def test_the_first_command_names_the_queue(self, queue: Queue) -> None:
        for address, words in {
            "": "--name quotes",
            "sqlite:///a b.db": "--queue 'sqlite:///a b.db' --name quotes",
            "sqlite:///a.db?name=quotes": "--queue 'sqlite:///a.db?name=quotes'",
            "app:queue": "--queue app:queue",
        }.items():
            told = page(queue, address=address).client.get("/api/queue").json()
            assert told["first_command"] == f'freshq put \'{{"hello": "world"}}\' {words}'

    def test_schedules_are_listed(self, queue: Queue) -> None:
        shown = page(queue, schedules=[Schedule.of("often", Every(10), "work")])
        assert shown.client.get("/api/queue").json()["has_schedules"]
        (row,) = shown.client.get("/api/schedules").json()["rows"]
        assert (row["name"], row["when"], row["started"]) == ("often", "every 10 s", False)

    def test_a_store_that_does_not_answer_is_no_empty_queue(self) -> None:
        store = FaultyStore()
        shown = page(store.queue())
        with store.down():
            answer = shown.client.get("/api/tasks")
        assert (answer.status_code, answer.json()["error"]) == (503, "the test made the store fail")

    def test_the_colours_are_those_of_the_palette(self, shown: Page) -> None:
        css = shown.client.get("/palette.css").text
        assert all(f"--fate-{colour.name.lower()}:{colour.value};" in css for colour in Colour)


def said_of(live: Live) -> str | None:
    """Return the result of the last redrive; None while it runs."""
    redrive = live.redriven()
    assert redrive is not None
    said: str | None = redrive["said"]
    return said


class TestChanging:
    def test_pause_and_resume(self, shown: Page) -> None:
        assert shown.do("pause").json()["said"].startswith("Claims are suspended")
        assert shown.queue.paused()
        shown.do("resume")
        assert not shown.queue.paused()

    def test_a_dead_letter_is_redriven_or_deleted(self, shown: Page) -> None:
        assert shown.do("redrive", id="dead").status_code == 200
        assert shown.queue.stats().pending == 2
        shown.queue.fail(shown.queue.claim()[0], error="again")
        assert shown.do("purge", id="dead").status_code == 200
        assert shown.queue.get("dead") is None

    def test_all_dead_letters_of_a_cause_are_redriven(self, shown: Page) -> None:
        for number in range(250):
            shown.queue.put(number, kind="mail", task_id=f"mail-{number}")
            shown.queue.cancel(f"mail-{number}", dead=True, error=f"no answer after {number} s")
        cause = {"error": "no answer after <n> s", "kind": "mail"}
        listed = shown.client.get("/api/tasks", params={"status": "FAILURE", **cause}).json()
        assert len(listed["rows"]) == 25
        assert {row["kind"] for row in listed["rows"]} == {"mail"}
        assert shown.do("redrive all", cause=cause).status_code == 200
        wait_until(lambda: shown.queue.stats().failure == 1)
        known = shown.queue.get("dead")
        assert known is not None
        assert known.status == "FAILURE"
        assert shown.do("redrive all", cause={"error": cause["error"], "kind": "chat"}).status_code == 200
        assert shown.queue.stats().failure == 1

    def test_one_redrive_at_a_time_says_how_far_it_is(self, queue: Queue, clock: Clock) -> None:
        clock.advance(61)
        live, goes_on = Live(PageWatcher(queue), 1), threading.Event()

        class Slow(Queue):
            def redrive(self, *arguments: Any, **options: Any) -> int:
                assert goes_on.wait(PATIENCE_SECONDS)
                return queue.redrive(*arguments, **options)

        slow = Slow(core_of(queue).store, clock=clock, max_age_seconds=60, name="quotes")
        live.redrive(slow, None, as_new=False)
        with pytest.raises(RefusedError, match="is under way"):
            live.redrive(slow, None, as_new=True)
        goes_on.set()
        wait_until(lambda: said_of(live) is not None)
        ((_, _), (_, snapshot)) = asyncio.run(first_events(live.events(), 2))
        said = "0 dead letters returned to their lines. 1 stay, because they are stale."
        assert snapshot["redrive"] == {"error": None, "kind": None, "seen": 1, "total": 1, "said": said}
        live.redrive(slow, None, as_new=True)
        wait_until(lambda: queue.stats().failure == 0)

    def test_a_redrive_that_fails_is_told(self) -> None:
        store = FaultyStore()
        live = Live(PageWatcher(store.queue()), 1)
        with store.down():
            live.redrive(store.queue(), None, as_new=False)
            wait_until(lambda: said_of(live) is not None)
        assert "The redrive ended after 0 dead letters: " in str(said_of(live))

    def test_a_task_in_work_is_cancelled_by_force_only(self, shown: Page) -> None:
        (claim,) = shown.queue.claim()
        task_id = claim.task.task_id
        assert shown.do("cancel", id=task_id).status_code == 409
        assert shown.do("cancel by force", id=task_id).status_code == 200
        assert core_of(shown.queue).found(task_id).status == "CANCELLED"

    def test_a_waiting_task_is_made_new_or_cancelled(self, shown: Page, clock: Clock) -> None:
        clock.advance(30)
        assert shown.do("redrive as new", id="a").status_code == 200
        assert shown.queue.stats().oldest_pending_seconds == pytest.approx(0, abs=0.01)
        assert shown.do("cancel", id="a").status_code == 200
        assert shown.queue.stats().cancelled == 1

    def test_a_change_that_the_state_does_not_allow_is_refused(self, shown: Page) -> None:
        answer = shown.do("cancel", id="dead")
        assert (answer.status_code, "cannot cancel" in answer.json()["error"]) == (409, True)
        assert shown.do("redrive", id="nobody").status_code == 404

    @pytest.mark.parametrize(
        "order",
        [
            {},
            [],
            "pause",
            {"verb": "purge"},
            {"verb": "cancel"},
            {"verb": "pause", "id": "a"},
            {"verb": "pause", "id": 1},
            {"verb": "cancel", "id": None},
            {"verb": []},
            {"verb": "redrive all", "cause": "none"},
        ],
    )
    def test_a_malformed_order_is_refused(self, shown: Page, order: object) -> None:
        assert shown.client.post("/api/do", json=order).status_code == 400
        answer = shown.client.post("/api/do", content="{")
        assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (400, "body")

    @pytest.mark.parametrize(
        ("body", "status", "problem"),
        [("[" * 30_000, 400, "nested too deep"), (f'"{"x" * 70_000}"', 413, "at most 65536 bytes")],
    )
    def test_an_order_too_deep_or_too_long_is_refused(
        self, shown: Page, body: str, status: int, problem: str
    ) -> None:
        answer = shown.client.post("/api/do", content=body)
        assert (answer.status_code, problem in answer.json()["error"]) == (status, True)

    def test_a_dashboard_that_only_shows_changes_nothing(self, queue: Queue) -> None:
        shown = page(queue, changes=False)
        assert shown.client.get("/api/queue").json()["changes"] is False
        assert shown.do("pause").status_code == 403
        assert not queue.paused()


async def first_events(events: AsyncIterator[str], number: int) -> list[tuple[str, Any]]:
    """Return the first events of a stream, and end it."""
    found = []
    async for text in events:
        name, data = text.strip().split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        if len(found) == number:
            break
    await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    return found


class TestLive:
    def test_snapshots_come_after_the_history(self, queue: Queue) -> None:
        live = Live(PageWatcher(queue), 0.01)
        found = asyncio.run(first_events(live.events(), 3))
        assert [name for name, _value in found] == ["history", "snapshot", "snapshot"]
        assert found[1][1]["stats"]["pending"] == 1
        assert "secret" not in json.dumps(found)

    def test_nobody_watches_while_nobody_reads(self, queue: Queue) -> None:
        snapshots = []

        class Counting(PageWatcher):
            def snapshot(self) -> Any:
                snapshots.append(1)
                return super().snapshot()

        async def read_and_leave() -> int:
            live = Live(Counting(queue), 0.001)
            await first_events(live.events(), 3)
            watching = live._watching
            if watching is not None:
                await asyncio.wait_for(watching, PATIENCE_SECONDS)
            return len(snapshots)

        assert asyncio.run(read_and_leave()) == len(snapshots) >= 2

    def test_readers_share_the_snapshots(self, queue: Queue) -> None:
        async def read_twice() -> list[list[tuple[str, Any]]]:
            live = Live(PageWatcher(queue), 0.01)
            return await asyncio.gather(*(first_events(live.events(), 3) for _ in range(2)))

        one, other = asyncio.run(read_twice())
        assert [name for name, _ in one] == [name for name, _ in other]

    def test_a_store_that_does_not_answer_is_told_and_asked_again(self) -> None:
        store = FaultyStore()
        live = Live(PageWatcher(store.queue()), 0.01)

        async def read() -> list[Any]:
            store.fail_next()
            return await first_events(live.events(), 3)

        names = [name for name, _value in asyncio.run(read())]
        assert names == ["history", "problem", "snapshot"]

    def test_a_fault_of_its_own_is_told_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        class Faulty(PageWatcher):
            def snapshot(self) -> dict[str, Any]:
                raise ZeroDivisionError("a fault")

        with caplog.at_level(logging.ERROR):
            found = asyncio.run(first_events(Live(Faulty(Queue.memory()), 0.01).events(), 3))
        assert [name for name, _value in found] == ["history", "problem", "problem"]
        assert found[1][1] == {"problem": "the dashboard failed: ZeroDivisionError: a fault"}
        assert caplog.records[0].exc_info is not None

    def test_a_change_is_shown_before_the_next_snapshot_is_due(self, queue: Queue) -> None:
        async def read() -> dict[str, Any]:
            live = Live(PageWatcher(queue), 3600)
            events = live.events()
            await anext(events)
            await anext(events)
            queue.pause()
            live.refresh()
            text = await asyncio.wait_for(anext(events), PATIENCE_SECONDS)
            live.close()
            assert [text async for text in events] == []
            snapshot: dict[str, Any] = json.loads(text.partition("data: ")[2])
            return snapshot

        assert asyncio.run(read())["paused"] is True

    def test_a_quiet_stream_shows_that_it_is_alive(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_module, "QUIET_SECONDS", 0.01)

        async def read() -> str:
            events = Live(PageWatcher(queue), 3600).events()
            some = [await anext(events) for _ in range(6)]
            text = next((text for text in some if text.startswith(":")), "nothing came")
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator
            return text

        assert asyncio.run(read()) == ": nothing new\n\n"


def point(second: int, waiting: int | None = 0) -> dict[str, Any]:
    return {"at_ms": 1000 * second, "offered": 1.0, "served": 1.0, "shed": 0.0, "waiting": waiting}


class TestLastHour:
    def test_it_keeps_an_hour_in_bounded_memory(self) -> None:
        hour = LastHour()
        for second in range(10_000):
            hour.add(point(second, second))
        points = hour.points()
        assert len(points) == KEPT_SECONDS // STEP_SECONDS + 1
        assert points[0]["at_ms"] == points[-1]["at_ms"] - 1000 * KEPT_SECONDS
        assert points[-1]["at_ms"] == 1000 * 9_999
        assert len(hour.trend()) == 61
        assert hour.trend()[-1] == 9_999

    def test_a_clock_that_goes_back_does_not_grow_it(self) -> None:
        hour = LastHour()
        for second in range(0, -10_000_000, -1000):
            hour.add(point(second))
        assert len(hour.points()) == KEPT_SECONDS // STEP_SECONDS + 1

    def test_a_sample_without_a_page_is_in_the_history_of_the_next_page(self, queue: Queue) -> None:
        async def read() -> list[tuple[str, Any]]:
            live = Live(PageWatcher(queue), 0.01)
            await live.sample()
            return await first_events(live.events(), 1)

        ((_name, history),) = asyncio.run(read())
        assert [each["waiting"] for each in history["rates"]] == [1]
        assert history["gap_seconds"] == 60

    def test_a_store_that_does_not_answer_leaves_a_gap(self) -> None:
        store = FaultyStore()
        live = Live(PageWatcher(store.queue()), 0.01)
        with store.down():
            asyncio.run(live.sample())
        assert live.trend() == []
        asyncio.run(live.sample())
        assert live.trend() == [0]

    def test_a_dashboard_that_nobody_opened_records_every_queue(self, queue: Queue) -> None:
        sibling(queue, name="mail").put("work")
        dashboard = Dashboard(Shown(queue))
        with dashboard.beside() as url:
            root, _, token = url.partition("#token=")

            def recorded() -> bool:
                headers = {"X-Freshq-Token": token}
                answer = httpx.get(f"{root}api/queues", headers=headers, timeout=PATIENCE_SECONDS)
                return [row["trend"] for row in answer.json()["rows"]] == [[1], [1]]

            wait_until(recorded)


class TestServing:
    def test_it_serves_beside_other_work_and_ends(self, queue: Queue) -> None:
        dashboard = Dashboard(Shown(queue))
        with dashboard.beside() as url:
            root, _, token = url.partition("#token=")
            headers = {"X-Freshq-Token": token}
            with httpx.Client(base_url=root, headers=headers, timeout=PATIENCE_SECONDS) as client:
                assert client.get("/").status_code == 200
                assert client.get("/api/queue").json()["name"] == "quotes"
                with client.stream("GET", "/api/live") as stream:
                    assert next(stream.iter_lines()) == "event: history"
        assert not any(thread.name == "freshq-dashboard" for thread in threading.enumerate())
        with pytest.raises(httpx.ConnectError):
            httpx.get(root, timeout=PATIENCE_SECONDS)

    def test_each_start_has_its_own_token(self, queue: Queue) -> None:
        first, second = (Dashboard(Shown(queue)) for _ in range(2))
        assert first.url.partition("#")[2] != second.url.partition("#")[2]
        for each in (first, second):
            each.unserved()

    def test_an_address_for_others_needs_a_name(self, queue: Queue) -> None:
        with pytest.raises(ValueError, match="--allow-host"):
            Dashboard(Shown(queue), "0.0.0.0")  # noqa: S104 - it is refused


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--host", "0.0.0.0"], "--allow-host"),  # noqa: S104 - it is refused
            (["--every-seconds", "0"], "every_seconds"),
            (["--schedules", "missing.toml"], "missing.toml"),
            (["--host", "256.1.1.1"], "host"),
            (["--queue", "memory://"], "memory://"),
        ],
    )
    def test_wrong_use_is_one_line(self, sqlite_url: str, arguments: list[str], why: str) -> None:
        done = CliRunner().invoke(command, ["dashboard", "--queue", sqlite_url, *arguments])
        assert done.exit_code == 2
        assert why in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_queue_without_a_table_is_said_before_anything_is_served(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'no.db'}"
        done = CliRunner().invoke(command, ["dashboard", "--queue", url, "--port", "0"])
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (3, "", 1)

    def test_it_prints_its_address_and_ends_when_told_to(self, sqlite_url: str) -> None:
        arguments = ["dashboard", "--queue", sqlite_url, "--port", "0", "--json"]
        program = [sys.executable, "-m", "freshq.cli", *arguments]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["url"]
                root, _, token = url.partition("#token=")
                headers = {"X-Freshq-Token": token}
                with httpx.stream(
                    "GET", f"{root}api/live", headers=headers, timeout=PATIENCE_SECONDS
                ) as stream:
                    lines = stream.iter_lines()
                    assert any(line == "event: snapshot" for line in lines)
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(PATIENCE_SECONDS) == 0
            finally:
                process.kill()
            _out, errors = process.communicate()
        assert errors == ""

    def test_a_port_in_use_is_one_line(self, queue: Queue, sqlite_url: str) -> None:
        other = Dashboard(Shown(queue))
        port = other.url.partition("#")[0].rstrip("/").rpartition(":")[2]
        done = CliRunner().invoke(command, ["dashboard", "--queue", sqlite_url, "--port", port])
        other.unserved()
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert f"port: cannot listen on 127.0.0.1:{port}" in done.stderr


def test_the_verbs_of_the_page_are_in_the_audit_record(shown: Page) -> None:
    assert shown.do("pause").status_code == 200
    assert shown.do("cancel", id="no-such-task").status_code != 200
    record = core_of(shown.queue).store.read_record("quotes", AUDIT)
    assert record is not None
    noted = [(each["verb"], each["given"].get("from"), each["outcome"]) for each in record.values["entries"]]
    assert noted == [("pause", "dashboard", "done"), ("cancel", "dashboard", "NotFound")]
