"""`freshq.contrib.django` in projects made by `django-admin startproject`, on each database."""

import sys
from pathlib import Path
from typing import Any

import pytest

from freshq.contrib.django import _file_address, _server_address
from freshq.contrib.django.migrations import to_version
from freshq.stores.sql.migrations import MIGRATIONS
from freshq.stores.sql.url import file_of, parsed_url
from tests.support.django_site import Site, made_site

SETTINGS = """
FRESHQ = {"HANDLERS": "shop.tasks.handlers", "OPTIONS": {"max_age_seconds": 3600, "max_attempts": 1}}
DATABASES["default"]["ATOMIC_REQUESTS"] = True  # under which the admin acts, too
"""
TASKS = """
from django.contrib.auth.models import User
from freshq import Handlers

handlers = Handlers()


@handlers.on("greet")
def greet(task, payload: str):
    return f"hello {User.objects.get(username=payload).username}"


@handlers.on("aloud")
async def aloud(task, payload: str):
    return payload.upper()
"""
PUTS = """
from shop.tasks import aloud, greet

def put(task_id, undo=False):
    try:
        with transaction.atomic():
            User.objects.create(username=task_id)
            receipt = greet.put(queue, task_id, task_id=task_id)
            seen = queue.get(task_id) if QUERY else None
            assert seen is None, "nobody sees it before the commit"
            if undo:
                raise KeyError(task_id)
    except KeyError:
        return None
    return receipt.outcome

with transaction.atomic():
    outer = put("outer")
    put("savepoint", undo=True)
found = [put("a"), put("b", undo=True), put("c"), outer]
found.append(queue.put("x", kind="greet", task_id="apart").outcome)
found.append(aloud.put(queue, "psst", task_id="async").outcome)
print(json.dumps([found, sorted(task.task_id for task in queue.list()), User.objects.count()]))
"""
ADMIN = """
import re
from django.test.utils import setup_test_environment
setup_test_environment()  # answers then have their context
client = Client()
page = "/admin/freshq/task/"
admin = User.objects.create_superuser("admin")
reader = User.objects.create_user("reader", is_staff=True)
reader.user_permissions.add(Permission.objects.get(codename="view_task", content_type__app_label="freshq"))

def act(action, *ids):
    answer = client.post(page, {"action": action, "_selected_action": ids}, follow=True)
    return [str(message) for message in answer.context["messages"]]

queue.put("one", task_id="one", kind="mail", group="desk")
queue.put("two", task_id="two")
queue.put("three", task_id="three")
for claim in queue.claim(3):
    if claim.task.task_id == "two":
        queue.fail(claim, error="no such address")
    else:
        queue.release(claim)
client.force_login(reader)
seen = client.get(page).content.decode()
found = {"reader sees": all(name in seen for name in ("one", "two", "three", "no such address", "desk"))}
found["columns"] = re.findall(r'class="[^"]*column-(\\w+)', seen)[:4]
found["reader acts"] = act("cancel", "one") + [queue.get("one").status]
found["reader has actions"] = "Redrive" in seen
client.force_login(admin)
for name, query in {"dead": "status__exact=FAILURE", "search": "q=address"}.items():
    found[name] = re.findall(r"/task/(\\w+)/change", client.get(f"{page}?{query}").content.decode())
one = client.get(page + "two/change/").content.decode()
found["one"] = [text in one for text in ("no such address", "&quot;two&quot;", "1. failed", 'name="_save"')]
found["cancel"] = act("cancel", "one", "two") + [queue.get("one").status]
found["redrive"] = act("redrive", "two") + [queue.get("two").status]
found["redrive as new"] = act("redrive_as_new", "one", "three")
found["history"] = LogEntry.objects.filter(change_message__contains="Redriven").count()
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return made_site(request, tmp_path_factory.mktemp("site"), TASKS, SETTINGS)


def test_puts_commit_and_roll_back_with_rows(site: Site) -> None:
    outcomes, ids, users = site.does(PUTS)
    assert outcomes == ["CREATED", None, "CREATED", "CREATED", "CREATED", "CREATED"]
    assert ids == ["a", "apart", "async", "c", "outer"]
    assert users == 3
    printed = site.run("manage.py", "freshq_work", "--concurrency", "2", "--idle-exit-seconds", "0.2")
    assert '"kinds": ["aloud", "greet"]' in printed
    results = "print(json.dumps({task.task_id: task.result or task.error for task in queue.list()}))"
    assert site.does(results) == {
        "a": "hello a",
        "c": "hello c",
        "outer": "hello outer",
        "async": "PSST",
        "apart": "DoesNotExist: User matching query does not exist.",
    }
    assert "hello a" in site.run("-m", "freshq", "get", "a", "--queue", "freshq.contrib.django:queue")
    site.does("queue.purge(confirm=queue.name); print(0)")


def test_runs_in_processes_of_their_own(site: Site) -> None:
    puts = "queue.put('own', kind='greet', task_id='own'); queue.put('x', kind='aloud', task_id='later')"
    site.does(f"User.objects.create(username='own'); {puts}; print(0)")
    site.run("manage.py", "freshq_work", "--isolate", "--recycle-runs", "1", "--idle-exit-seconds", "0.2")
    results = "print(json.dumps({task.task_id: task.result or task.error for task in queue.list()}))"
    assert site.does(results) == {"own": "hello own", "later": "X"}
    site.does("queue.purge(confirm=queue.name); print(0)")


def test_the_admin_lists_redrives_and_cancels(site: Site) -> None:
    found = site.does(ADMIN)
    assert found == {
        "reader sees": True,
        "columns": ["task_id", "status", "why", "kind"],
        "reader acts": ["PENDING"],
        "reader has actions": False,
        "dead": ["two"],
        "search": ["two"],
        "one": [True, True, True, False],
        "cancel": [
            "Cancelled: 1",
            "task 'two': cannot cancel a task that is FAILURE; cancel needs PENDING",
            "CANCELLED",
        ],
        "redrive": ["Redriven: 1", "PENDING"],
        "redrive as new": [
            "Redriven as new: 1",
            (
                "task 'one': cannot redrive as new a task that is CANCELLED; "
                "redrive as new needs PENDING or FAILURE"
            ),
        ],
        "history": 2,
    }


def test_migrations_are_complete(site: Site) -> None:
    assert "No changes detected" in site.run("manage.py", "makemigrations", "--check")
    assert "[X] 0001_tables" in site.run("manage.py", "showmigrations", "freshq")


WITHOUT_DATABASE = """
from site1 import settings
settings.DATABASES = {"default": {}}
import django
django.setup()
from django.core.management import call_command
call_command("check")
from freshq.contrib.django import queue
try:
    queue.put(1)
except django.core.exceptions.ImproperlyConfigured as error:
    print(error)
"""


def test_a_project_without_a_database_loads(site: Site) -> None:
    if site.database != "sqlite":
        pytest.skip("no database is asked")
    printed = site.run("-c", WITHOUT_DATABASE)
    assert "FRESHQ: database 'default' has no ENGINE in DATABASES" in printed


def test_the_newest_migration_is_of_the_newest_tables() -> None:
    folder = Path(sys.modules[to_version.__module__].__file__ or "").parent
    newest = max(folder.glob("[0-9]*.py")).read_text("utf-8")
    assert f"to_version({MIGRATIONS[-1].version})" in newest, "add a migration for freshq's own"


@pytest.mark.parametrize("name", ["a%2Fb", "a?b=c", "a#b", "a b", "ä:b", "a&b"])
def test_the_file_of_a_project_may_have_any_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "db.sqlite3"
    assert file_of(parsed_url(_file_address({"NAME": file}))) == str(file)


@pytest.mark.parametrize(
    ("dialect", "entry", "query"),
    [
        ("mariadb", {"OPTIONS": {"ssl": {"ca": "ca.pem", "key": "k"}}}, {"ssl_ca": "ca.pem", "ssl_key": "k"}),
        ("mariadb", {"HOST": "/run/db.sock"}, {"unix_socket": "/run/db.sock"}),
        ("postgresql", {"OPTIONS": {"assume_role": "a b"}}, {"options": "-c role=a\\ b"}),
        (
            "postgresql",
            {"OPTIONS": {"options": "-c x=1", "assume_role": "b"}},
            {"options": "-c x=1 -c role=b"},
        ),
        (
            "postgresql",
            {"OPTIONS": {"passfile": Path("p"), "pool": True, "isolation_level": 4}},
            {"passfile": "p"},
        ),
        (
            "postgresql",
            {"HOST": "a,b", "PORT": "1,2"},
            {"host": ("a:1", "b:2"), "target_session_attrs": "read-write"},
        ),
        (
            "postgresql",
            {"HOST": "a,b", "PORT": "7", "OPTIONS": {"target_session_attrs": "any"}},
            {"host": ("a:7", "b:7"), "target_session_attrs": "any"},
        ),
        ("postgresql", {"HOST": "a,b"}, {"host": ("a", "b"), "target_session_attrs": "read-write"}),
    ],
)
def test_the_address_says_what_the_settings_say(
    dialect: str, entry: dict[str, Any], query: dict[str, Any]
) -> None:
    given = {"NAME": "My?Shop", "USER": "ada", "PASSWORD": "p@:/?#%", "HOST": "", "PORT": "", "OPTIONS": {}}
    url = parsed_url(_server_address(given | entry, dialect))
    assert (url.database, url.username, url.password) == ("My?Shop", "ada", "p@:/?#%")
    assert dict(url.query) == query
