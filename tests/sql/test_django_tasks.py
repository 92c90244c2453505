"""Django's tasks on freshq, in a project made by `django-admin startproject`, on each database."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from freshq.contrib.django.tasks import FreshqBackend, level_of
from tests.support.django_site import Site, made_site
from tests.support.patience import PATIENCE_SECONDS
from tests.support.work_process import until

# Queues of one backend, of one without names, and one whose leases end soon.
SETTINGS = """
import django
DATABASES["default"]["TEST"] = {"MIGRATE": "sqlite" in DATABASES["default"]["ENGINE"]}
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
BACKEND = "freshq.contrib.django.tasks.FreshqBackend"
SOON = {"max_attempts": 2, "backoff": "0.01,0.02"}
FRESHQ = {
    "HANDLERS": "shop.tasks.handlers",
    "SCHEDULES": "shop.recurring.schedules",
    "OPTIONS": {"max_age_seconds": 3600},
}
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": SOON},
    "any": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"max_age_seconds": None}},
    "brief": {"BACKEND": BACKEND, "QUEUES": ["brief"], "OPTIONS": {"lease_seconds": 2, "max_attempts": None}},
}
"""
RECURRING = """
from django.contrib.auth.models import User
from freshq.feeds import Cron, Every, Schedule
from freshq.contrib.django.tasks import TaskSchedule
from shop.tasks import add, later

schedules = [
    Schedule.of("plainly", Every(0.5), "psst", kind="plain"),
    Schedule.of("users", Cron("0 0 1 1 *"), lambda _: User.objects.count()),
    TaskSchedule.of_task("sums", Every(0.5), add.using(priority=20, value=3), [2], {"b": 3}),
    TaskSchedule.of_task("mails", Cron("0 3 * * *"), later.using(queue_name="mail"), ["ada"]),
]
"""
WRONG = """
import datetime
from freshq.feeds import Every
from freshq.contrib.django.tasks import TaskSchedule
from shop.tasks import add

soon = datetime.datetime.now(datetime.UTC)
schedules = [TaskSchedule.of_task("a", Every(1), add.using(run_after=soon))]
"""
FRAMEWORK = """
try:
    from django.tasks import TaskContext, signals, task, task_backends
except ModuleNotFoundError:
    from django_tasks import TaskContext, signals, task, task_backends
"""
TASKS = f"""
import pathlib, threading
from django.contrib.auth.models import User
from freshq import Busy, Handlers, Reject, Retry
{FRAMEWORK}
handlers = Handlers()

class Missing(Exception):
    pass

@handlers.on("plain")
def plain(task, payload: str):
    return payload.upper()

@task
def add(a, b=1):
    return a + b

@task(priority=5)
async def later(a):
    return await User.objects.filter(username=a).acount()

@task(takes_context=True)
def tell(context, *args):
    assert isinstance(context, TaskContext)
    return [context.task_result.id, context.attempt, context.task_result.status, args]

@task(takes_context=True)
def second_time(context):
    if context.attempt == 1:
        raise Missing("not yet: wait")
    return "done"

@task
def fails():
    raise ValueError(ValueError("of no use"))

@task
def exits():
    raise SystemExit("leaving")

@task
def odd():
    return object()

@task
def large():
    return "x" * 500_000

@task
def keyed(given):
    return {{1: given}}

@task
def rejects():
    raise Reject("no such customer")

@task(takes_context=True)
def hangs(context, file):
    pathlib.Path(f"{{file}}{{min(context.attempt, 2)}}").touch()
    if context.attempt > 1:
        return "again"
    threading.Event().wait()

def note(sender, task_result, **_):
    told = f"{{task_result.task.name}} {{task_result.status}} {{sender.__name__}}"
    User.objects.get_or_create(username=told)

signals.task_started.connect(note)
signals.task_finished.connect(note)
"""
HELP = f"""
from datetime import datetime, timedelta, timezone
import asyncio
from shop import tasks
from shop.tasks import *
{FRAMEWORK}
def refusal(call, *args, **kwargs):
    try:
        return ["returned", str(call(*args, **kwargs))]
    except Exception as error:
        return [type(error).__name__.removesuffix("Error"), str(error)]

found = {{}}
backend = task_backends["default"]
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return made_site(request, tmp_path_factory.mktemp("site"), TASKS, SETTINGS)


def facts(site: Site, program: str) -> Any:
    """Return what a program puts into `found`."""
    return site.does(f"{HELP}\n{program}\nprint(json.dumps(found, default=str))")


def test_every_priority_has_a_level_in_its_order() -> None:
    levels = [level_of(priority) for priority in range(-100, 101)]
    assert levels == sorted(levels)
    assert {*levels} == {*range(10)}
    assert [level_of(priority) for priority in (-100, -76, -75, -1, 0, 1, 20, 21, 100)] == [
        *(0, 0, 1, 3, 4, 5, 5, 6, 9),
    ]


def test_the_backend_supports_everything() -> None:
    names = ("defer", "async_task", "get_result", "priority")
    assert [getattr(FreshqBackend, f"supports_{name}") for name in names] == [True] * 4


ENQUEUES = """
result = add.enqueue((1, b"x"), b={"k": (2,)})
found["new"] = [result.status, result.is_finished, result.args, result.kwargs, result.attempts, result.errors]
found["times"] = [result.enqueued_at.tzinfo is None, result.started_at, result.finished_at]
found["same"] = [
    result == other
    for other in (
        add.get_result(result.id), asyncio.run(add.aget_result(result.id)), backend.get_result(result.id),
    )
]
before = str(result)
result.refresh()
asyncio.run(result.arefresh())
found["refreshed"] = str(result) == before
found["value"] = refusal(lambda: result.return_value)
found["async"] = asyncio.run(later.aenqueue("x")).task == later
names = ("123", 123, "", "a.mail", "a.b c", "a\\0")
found["missing"] = [refusal(backend.get_result, name)[0] for name in names]
found["other"] = refusal(later.get_result, result.id)[0]
queue.put({"args": []}, task_id="plain")
found["plain"] = refusal(backend.get_result, "plain")[0]
queue.purge(confirm=queue.name)
"""


IN_TEST_CASES = """
import sys, threading
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from freshq.contrib.django import queue
from freshq.testing import drain
from shop.tasks import add, tell

queue.name  # some tests use it before their database exists

class WithoutADatabase(SimpleTestCase):
    def test_nothing_is_put(self):
        for put in (add.enqueue, queue.put):
            with self.assertRaisesRegex(AssertionError, "not allowed in SimpleTestCase"):
                put(1)

class InATransaction(TestCase):
    def test_results_are_seen(self):
        result = add.using(queue_name="mail").enqueue(1)
        self.assertEqual(add.get_result(result.id), result)

    def test_the_admin_shows_them(self):
        self.client.force_login(User.objects.create_superuser("root"))
        result = add.enqueue(1)
        self.assertContains(self.client.get(f"/admin/freshq/task/{result.id}/change/"), result.id)

    async def test_in_coroutines(self):
        result = await add.aenqueue(1)
        await result.arefresh()
        self.assertEqual(await add.aget_result(result.id), result)

class WithoutOne(TransactionTestCase):
    def test_a_run(self):
        from freshq.contrib.django.management.commands.freshq_work import runner
        self.assertEqual(queue.put("once", kind="plain", task_id="the same").outcome, "CREATED")
        result = tell.enqueue()
        drain(queue, runner)
        result.refresh()
        self.assertEqual(result.return_value, [result.id, 1, "RUNNING", []])

    test_another_run_after_the_flush = test_a_run

    def test_a_thread_may_flush(self):
        def flush():
            call_command("flush", "--noinput", verbosity=0)
            connections.close_all()
        queue.put("lost", kind="plain")
        thread = threading.Thread(target=flush)
        thread.start()
        thread.join()
        self.assertEqual(queue.stats().pending, 0)

    def test_the_queue_is_open_after_a_command(self):
        own = sys.argv
        with self.assertRaises(SystemExit):
            call_command("freshq_work", "--dry-run")
        self.assertEqual((queue.stats().pending, sys.argv), (0, own))
"""


COUNT = "found = [len(queue.list()), len(queue.named('mail').list())]"


def test_applications_test_their_tasks(site: Site) -> None:
    # SQLite's is in memory, and PostgreSQL deletes none that is in use.
    if site.database == "mariadb":
        pytest.skip("its database is deleted as SQLite's is")
    (site.folder / "shop" / "tests.py").write_text(IN_TEST_CASES)
    before = facts(site, COUNT)
    site.run("manage.py", "test", "--noinput")
    assert facts(site, COUNT) == before, "tests have a database of their own"


def test_enqueue_and_get_result(site: Site) -> None:
    found = facts(site, ENQUEUES)
    assert found["new"] == ["READY", False, [[1, "x"]], {"b": {"k": [2]}}, 0, []]
    assert found["times"] == [False, None, None]
    assert found["same"] == [True, True, True]
    assert found["refreshed"]
    assert found["value"] == ["Value", "Task has not finished yet"]
    assert found["async"]
    assert found["missing"] == ["TaskResultDoesNotExist"] * 6
    assert (found["other"], found["plain"]) == ("TaskResultMismatch", "TaskResultDoesNotExist")


USES = """
def stored(changed):
    result = changed.enqueue(1)
    own = changed.get_result(result.id).task
    assert own == changed == result.task, (own, changed)
    return own, queue.named(own.queue_name).get(result.id)

for priority in (-100, -1, 0, 1, 100):
    own, row = stored(add.using(priority=priority))
    found[priority] = [own.priority, row.priority]
found["zero"] = stored(later.using(priority=0))[0].priority
when = datetime.now(timezone(timedelta(hours=5))) + timedelta(hours=2)
own, row = stored(add.using(run_after=when))
found["due"] = [own.run_after == when, row.delayed, round(row.created - when.timestamp(), 3)]
own, row = stored(add.using(run_after=when - timedelta(days=400)))
found["past"] = [row.delayed, row.status]
own, row = stored(add.using(queue_name="mail"))
found["mail"] = [own.queue_name, row.queue, row.kind]
own, row = stored(add.using(backend="any", queue_name="else"))
found["any"] = [own.backend, row.queue, row.deadline]
own, row = stored(add.using(max_attempts=7, max_age_seconds=60, group="acme"))
found["freshq"] = [own.max_attempts, round(row.deadline - row.created), row.group]
found["unlimited"] = stored(add.using(backend="brief", queue_name="brief", max_attempts=3))[0].max_attempts
for name in ("default", "mail", "else", "brief"):
    queue.named(name).purge(confirm=name)
"""


def test_what_using_changes_travels_with_the_task(site: Site) -> None:
    assert facts(site, USES) == {
        **{str(priority): [priority, level_of(priority)] for priority in (-100, -1, 0, 1, 100)},
        "zero": 0,
        "due": [True, True, 0],
        "past": [False, "PENDING"],
        "mail": ["mail", "mail", "shop.tasks.add"],
        "any": ["any", "else", None],
        "freshq": [7, 60, "acme"],
        "unlimited": 3,
    }


REFUSALS = """
found = {
    "argument": refusal(add.enqueue, object()),
    "async": refusal(lambda: asyncio.run(add.aenqueue(datetime.now()))),
    "nan": refusal(add.enqueue, float("nan")),
    "bytes": refusal(add.enqueue, b"\\xff"),
    "priority": refusal(add.using, priority=101),
    "fraction": refusal(add.using, priority=1.5),
    "queue": refusal(add.using, queue_name="none"),
    "name": refusal(add.using, queue_name="a b", backend="any"),
    "naive": refusal(add.using, run_after=datetime.now()),
    "backend": refusal(add.using, backend="none"),
    "attempts": refusal(add.using, max_attempts=0),
    "age": refusal(add.using, max_age_seconds=-1),
    "older": refusal(add.using(max_age_seconds=7200).enqueue, 1),
    "group": refusal(add.using, group="x" * 300),
    "value": refusal(add.using, value=-1),
    "decay": refusal(add.using, decay="sudden"),
    "unknown": refusal(add.using, colour="red"),
    "function": refusal(task, any),
    "no task": refusal(task(tasks.plain.function).enqueue, "x"),
    "context": refusal(task(takes_context=True), add.func),
}
found["put"] = len(queue.list())
"""


def test_what_is_wrong_is_refused_before_anything_is_written(site: Site) -> None:
    if site.database != "sqlite":
        pytest.skip("no database is asked")
    found = facts(site, REFUSALS)
    assert found.pop("put") == 0
    kinds = {name: kind for name, (kind, _) in found.items()}
    assert kinds == {
        **dict.fromkeys(("argument", "async", "unknown"), "Type"),
        **dict.fromkeys(("nan", "bytes", "older"), "Value"),
        **dict.fromkeys(("group", "value", "decay"), "InvalidTask"),
        **dict.fromkeys(("priority", "fraction", "queue", "name", "naive"), "InvalidTask"),
        **dict.fromkeys(("attempts", "age", "function", "context", "no task"), "InvalidTask"),
        "backend": "InvalidTaskBackend",
    }
    assert found["attempts"][1].startswith("max_attempts: must be")
    assert found["older"][1].startswith("max_age_seconds: must be")


TRANSACTIONS = """
def enqueue(undo):
    ids = []
    try:
        with transaction.atomic():
            User.objects.create(username=f"undo {undo}")
            for own in (add, add.using(queue_name="mail")):
                ids.append(own.enqueue(1).id)
                found.setdefault("inside", []).append(add.get_result(ids[-1]).status)
            if undo:
                raise KeyError
    except KeyError:
        pass
    return [refusal(add.get_result, task_id)[0] for task_id in ids]

def by_hand(end):
    transaction.set_autocommit(False)
    try:
        User.objects.create(username=f"by hand {end}")
        own = add.enqueue(1)
        own.refresh()
        getattr(transaction, end)()
    finally:
        transaction.set_autocommit(True)
    return refusal(add.get_result, own.id)[0]

def doomed():
    with transaction.atomic():
        transaction.set_rollback(True)
        add.enqueue(1)

found["doomed"] = refusal(doomed)[0]
found["undone"] = enqueue(True)
found["by hand"] = [by_hand("rollback"), by_hand("commit")]
found["kept"] = enqueue(False)
found["async"] = refusal(lambda: asyncio.run(add.aenqueue(1)))[0]
found["counts"] = [len(queue.list()), len(queue.named("mail").list()), User.objects.count()]
for name in ("default", "mail"):
    queue.named(name).purge(confirm=name)
User.objects.all().delete()
"""


def test_an_enqueue_commits_and_rolls_back_with_rows(site: Site) -> None:
    assert facts(site, TRANSACTIONS) == {
        "inside": ["READY"] * 4,
        "undone": ["TaskResultDoesNotExist"] * 2,
        "doomed": "TransactionManagement",
        "by hand": ["TaskResultDoesNotExist", "returned"],
        "kept": ["returned"] * 2,
        "async": "returned",
        "counts": [3, 1, 2],
    }


BEGUN = """
calls = {
    "add": add.using(queue_name="mail").enqueue(1, b=2),
    "later": later.enqueue("nobody"), "tell": tell.enqueue(1),
    "keyed": keyed.enqueue({2: None}),
    **{each.name: each.enqueue() for each in (second_time, fails, exits, odd, large, rejects)},
}
cancelled, stale = add.enqueue(0), add.using(max_age_seconds=0.001).enqueue(0)
queue.cancel(cancelled.id)
plain.put(queue, "loud", task_id="plain")
queue.put({**queue.get(stale.id).payload}, kind="shop.gone.nothing", task_id="gone", max_age_seconds=3000)
found = {name: result.id for name, result in calls.items()} | {"cancelled": cancelled.id, "stale": stale.id}
"""
ENDED = """
ids = %r
for name, task_id in ids.items():
    result = backend.get_result(task_id)
    paths = [each.exception_class_path for each in result.errors]
    value = result._return_value if result.status == "SUCCESSFUL" else refusal(lambda: result.return_value)[1]
    found[name] = [result.status, value, result.attempts, paths]
    if result.attempts:
        times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
        assert times == sorted(times) and all(result.worker_ids), (name, times, result.worker_ids)
    for each in result.errors:
        assert issubclass(each.exception_class, BaseException)
    if name in ("second_time", "fails", "exits", "odd", "large"):
        found[name].append(result.errors[0].traceback.splitlines()[-1].partition(" 500")[0])
found["plain"] = queue.get("plain").result
found["gone"] = [queue.get("gone").status, queue.get("gone").attempts]
found["signals"] = sorted(user.username for user in User.objects.all())
"""


@pytest.mark.matrix("options")
@pytest.mark.parametrize("options", [(), ("--isolate",)], ids=["threads", "isolate"])
def test_a_worker_runs_tasks_of_django_and_handlers_of_all_queues(
    site: Site, options: tuple[str, ...]
) -> None:
    ids = facts(site, BEGUN)
    work = ("manage.py", "freshq_work", "--idle-exit-seconds", "0.5")
    printed = site.run(*work, "--processes", "2", "--concurrency", "default=2", *options)
    assert '"queues": {"default": 2, "mail": 3, "brief": 3}' in printed
    found = facts(site, ENDED % ids)
    assert found.pop("signals") == sorted(
        f"{name} {status} FreshqBackend"
        for name in ids.keys() - {"cancelled", "stale"}
        for status in (
            "RUNNING",
            "SUCCESSFUL" if name in ("add", "later", "tell", "keyed", "second_time") else "FAILED",
        )
    )
    failed, missing = ("FAILED", "Task failed"), "shop.tasks.Missing"
    assert found == {
        "add": ["SUCCESSFUL", 3, 1, []],
        "later": ["SUCCESSFUL", 0, 1, []],
        "tell": ["SUCCESSFUL", [ids["tell"], 1, "RUNNING", [1]], 1, []],
        "second_time": ["SUCCESSFUL", "done", 2, [missing], f"{missing}: not yet: wait"],
        "fails": [*failed, 2, ["builtins.ValueError"] * 2, "ValueError: of no use"],
        "exits": [*failed, 2, ["builtins.SystemExit"] * 2, "SystemExit: leaving"],
        "odd": [*failed, 1, ["builtins.TypeError"], "TypeError: Unsupported type: <class 'object'>"],
        "large": [*failed, 1, ["builtins.ValueError"], "ValueError: result:"],
        "keyed": ["SUCCESSFUL", {"1": {"2": None}}, 1, []],
        "rejects": [*failed, 1, ["freshq.model.answers.Reject"]],
        "cancelled": [*failed, 0, ["concurrent.futures.CancelledError"]],
        "stale": [*failed, 0, ["freshq.errors.Overloaded"]],
        "plain": "LOUD",
        "gone": ["PENDING", 0],
    }
    facts(site, "User.objects.all().delete(); queue.purge(confirm=queue.name)")


def test_the_task_of_a_killed_worker_runs_again(site: Site) -> None:
    begun = site.folder / "begun"
    hangs = f"hangs.using(backend='brief', queue_name='brief').enqueue({str(begun)!r})"
    task_id = facts(site, f"found['id'] = {hangs}.id")["id"]

    @contextmanager
    def worker() -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "manage.py", "freshq_work", "--queue", "brief"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=site.folder, **quiet) as process:  # type: ignore[call-overload]
            try:
                yield process
            finally:
                process.kill()

    with worker() as first:
        until((site.folder / "begun1").exists)
        os.kill(first.pid, signal.SIGKILL)
    ask = f"own = task_backends['brief'].get_result({task_id!r})"
    ask += "; found['own'] = [own.status, own._return_value, own.errors]"
    with worker() as second:
        until((site.folder / "begun2").exists)
        second.terminate()  # it settles what runs
        assert second.wait(PATIENCE_SECONDS) == 0
    status, value, errors = facts(site, ask)["own"]
    assert (status, value) == ("SUCCESSFUL", "again")
    assert "freshq.errors.LeaseLost" in errors[0]


def test_the_worker_serves_counters_of_tasks_of_django(site: Site) -> None:
    facts(site, "found['id'] = add.enqueue(1, 2).id")
    command = [sys.executable, "manage.py", "freshq_work", "--queue", "default", "--health-port", "0"]
    with subprocess.Popen(command, cwd=site.folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            page = f"http://127.0.0.1:{json.loads(process.stdout.readline())['health_port']}/metrics"

            def counted() -> bool:
                return any(
                    line.startswith("freshq_tasks_succeeded_total{") and line.endswith(" 1.0")
                    for line in httpx.get(page, timeout=PATIENCE_SECONDS).text.splitlines()
                )

            until(counted)
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()


CHECKS = """
from django.core.checks import run_checks
from django.test import override_settings

def problems(given=None, **changes):
    entry = {"BACKEND": "freshq.contrib.django.tasks.FreshqBackend", **(given or {})}
    with override_settings(**({"TASKS": {"default": entry}} | changes)):
        return [[each.id, each.msg] for each in run_checks() if each.id.startswith("freshq.")]

other = {"BACKEND": "freshq.contrib.django.tasks.FreshqBackend", "OPTIONS": {"max_attempts": 9}}
found = {
    "right": problems({"QUEUES": ["a", "b"], "OPTIONS": {"max_attempts": 3}}),
    "option": problems({"OPTIONS": {"colour": 1}}),
    "value": problems({"OPTIONS": {"max_attempts": 0}}),
    "name": problems({"OPTIONS": {"name": "x"}}),
    "queue": problems({"QUEUES": ["a b"]}),
    "string": problems({"QUEUES": "mail"}),
    "on commit": problems({"ENQUEUE_ON_COMMIT": True}),
    "database": problems(FRESHQ={"DATABASE": "other"}),
    "project": problems(FRESHQ={"OPTIONS": {"max_attempts": 0, "history": True}}),
    "list": problems(FRESHQ={"SCHEDULES": ["a schedule"]}),
    "text": problems(FRESHQ={"OPTIONS": "max_attempts=3"}),
    "two": problems(TASKS={"default": {**other, "OPTIONS": {}}, "other": other}),
    "app": problems(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"]),
}
"""


def test_wrong_settings_are_found_by_the_checks(site: Site) -> None:
    if site.database != "sqlite":
        pytest.skip("no database is asked")
    # On Django 5.2, the app of the backport calls the checks of backends.
    found = facts(
        site,
        CHECKS.replace('INSTALLED_APPS=["django', 'INSTALLED_APPS=[*EXTRA, "django').replace(
            "found = {", "import django\nEXTRA = ['django_tasks'] if django.VERSION < (6,) else []\nfound = {"
        ),
    )
    expected = {
        "right": [],
        "option": ["freshq.E002", "colour: unknown option"],
        "value": ["freshq.E002", "max_attempts: "],
        "name": ["freshq.E002", "OPTIONS: name: "],
        "queue": ["freshq.E002", "name: "],
        "string": ["freshq.E002", "QUEUES: must be a list"],
        "on commit": ["freshq.W001", "ENQUEUE_ON_COMMIT has no effect"],
        "database": ["freshq.E002", "DATABASE must be an alias"],
        "project": ["freshq.E002", "max_attempts: "],
        "list": ["freshq.E002", "SCHEDULES must be a str, got a list"],
        "text": ["freshq.E002", "OPTIONS must be a dict, got a str"],
        "two": ["freshq.E002", "the same OPTIONS"],
        "app": ["freshq.E001", "needs freshq's tables"],
    }
    assert found.keys() == expected.keys()
    for name, expect in expected.items():
        assert bool(found[name]) is bool(expect), (name, found[name])
        assert all(expect[1] in text for _id, text in found[name]), found[name]
        assert not expect or expect[0] in dict(found[name]), found[name]


def test_the_worker_refuses_queues_that_nobody_has(site: Site) -> None:
    if site.database != "sqlite":
        pytest.skip("no database is asked")
    settings = site.folder / "site1" / "settings.py"
    named = settings.read_text()
    try:
        settings.write_text(named + "\ndel TASKS['any']\n")
        printed = site.run("manage.py", "freshq_work", "--queue", "none", status=1)
        assert "queue: there is no queue 'none'; use default, mail, brief" in printed
        settings.write_text(named + "\nTASKS = {}\nFRESHQ = {}\n")
        assert "name the handlers" in site.run("manage.py", "freshq_work", status=1)
    finally:
        settings.write_text(named)


def test_the_path_of_the_backend_is_the_documented_one() -> None:
    assert f"{FreshqBackend.__module__}.{FreshqBackend.__qualname__}" in Path("docs/recipes.md").read_text(
        "utf-8"
    )


def fired(site: Site, *arguments: str) -> list[dict[str, Any]]:
    """Let the command fire due ticks once; return its lines about them."""
    printed = site.run("manage.py", "freshq_schedule", "--once", *arguments)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "fired"]


def test_schedules_enqueue_tasks_and_put_for_handlers(site: Site) -> None:
    (site.folder / "shop" / "recurring.py").write_text(RECURRING)
    ticks: dict[str, str] = {}

    def has_fired() -> bool:
        ticks.update({each["schedule"]: each["task_id"] for each in fired(site)})
        return ticks.keys() == {"plainly", "sums"}

    assert until(has_fired)
    site.run("manage.py", "freshq_work", "--idle-exit-seconds", "0.3")
    found = site.does(
        "from shop.tasks import add\n"
        f"result = add.get_result({ticks['sums']!r})\n"
        f"plain = queue.get({ticks['plainly']!r})\n"
        "stored = queue.get(result.id)\n"
        "print(json.dumps([result.return_value, result.task.priority, stored.value, plain.result]))"
    )
    assert found == [5, 20, 3.0, "PSST"]
    assert fired(site, "--queue", "mail") == []  # its mark is set, and nothing is due yet
    shown = site.run("manage.py", "freshq_schedule", "--dry-run", "--limit", "1", "--queue", "mail")
    assert "mails@" in shown
    assert "T03:00:00" in shown
    refused = site.run("manage.py", "freshq_schedule", "--queue", "nobody", status=1)
    assert "queue: no schedule is for 'nobody'; use default, mail" in refused


def test_the_payload_of_a_schedule_has_fresh_connections(site: Site) -> None:
    """A broken or expired one is closed, as at the end of a request."""
    (site.folder / "shop" / "recurring.py").write_text(RECURRING)
    assert site.does(
        "from django.db import connection\n"
        "from freshq.contrib.django.management.commands.freshq_schedule import schedules\n"
        "users = next(each for each in schedules if each.name == 'users')\n"
        "found = users.payload(None)\n"
        "print(json.dumps([found >= 0, connection.connection is None]))"
    ) == [True, True]


REFUSED = """
import importlib, pathlib, sys
from django.core.management import CommandError, call_command

for name, text in %r.items():
    pathlib.Path("shop/recurring.py").write_text(text)
    sys.modules.pop("shop.recurring", None)
    importlib.invalidate_caches()
    try:
        call_command("freshq_schedule")
    except CommandError as error:
        found[name] = str(error)
"""


def test_wrong_schedules_are_refused(site: Site) -> None:
    texts = {
        "is empty": "schedules = []",
        "must be a list of Schedule": "schedules = 3",
        "SCHEDULES": "",
        "schedule 'a': leave out run_after": WRONG,
    }
    for named, refused in facts(site, REFUSED % texts).items():
        assert named in texts
        assert named in refused
        assert "\n" not in refused
    refused = site.run("manage.py", "freshq_schedule", status=1)
    assert refused.count("\n") <= 2
