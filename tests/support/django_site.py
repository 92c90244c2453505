"""A project made by `django-admin startproject`, with freshq in it, on each database."""

import json
import os
import subprocess
import sys
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

# The settings of every project.
COMMON = """
INSTALLED_APPS += ["freshq.contrib.django", "shop"]
ALLOWED_HOSTS = ["*"]
DATABASES = {"default": %r}
"""
# Runs one program after the other in one process, because Django takes a second to start.
PROGRAMS = """
import contextlib
import io
import json
import sys
import traceback

for line in sys.stdin:
    printed, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "<program>", "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), flush=True)
"""
# Each program prints its findings as JSON.
BEGIN = """
import json
import django
django.setup()
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client
from freshq.contrib.django import queue
"""


@dataclass
class Site:
    """A project, whose tables are migrated.

    Attributes:
        folder: Where manage.py is.
        database: Kind of the database.
    """

    folder: Path
    database: str
    _programs: "subprocess.Popen[str] | None" = field(default=None, init=False)

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run Python with arguments in the folder; return its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + (done.stderr if status else "")

    def does(self, program: str) -> Any:
        """Run a program, in the process of the programs before it; return its findings."""
        if self._programs is None:
            with (self.folder / "stderr").open("w") as errors:
                self._programs = subprocess.Popen(
                    [sys.executable, "-c", PROGRAMS],
                    cwd=self.folder,
                    env=self._environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        process = self._programs
        assert process.stdin is not None
        assert process.stdout is not None
        # SQLite lets nobody else begin a transaction, but reads go on.
        process.stdin.write(json.dumps(f"{BEGIN}\nQUERY = True\n{program}") + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, (self.folder / "stderr").read_text()
        printed, error = json.loads(answer)
        assert error is None, printed + error
        return json.loads(printed.splitlines()[-1])

    def close(self) -> None:
        """End the process of the programs."""
        if self._programs is not None:
            self._programs.communicate()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "DJANGO_SETTINGS_MODULE": "site1.settings", "PYTHONWARNINGS": "error"}


def database_of(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    """Make an empty database; return its entry in DATABASES."""
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}
    server = request.getfixturevalue(f"{kind}_server")
    url, name = sa.make_url(server.url), f"django_{uuid.uuid4().hex[:8]}"
    place = {"USER": url.username, "HOST": url.host, "PORT": url.port, "NAME": name}
    if kind == "postgres":
        with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return {"ENGINE": "django.db.backends.postgresql", **place}
    with closing(pymysql.connect(user=url.username, host=url.host, port=url.port or 0)) as connection:
        connection.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return {"ENGINE": "django.db.backends.mysql", **place}


def made_site(request: pytest.FixtureRequest, folder: Path, tasks: str, settings: str) -> Site:
    """Return a project on the database that the request names.

    Args:
        request: The request of a fixture, whose parameter is the kind of the database.
        folder: An empty folder.
        tasks: The text of `shop/tasks.py`.
        settings: The settings besides `COMMON`.
    """
    made = Site(folder, request.param)
    request.addfinalizer(made.close)
    made.run("-m", "django", "startproject", "site1", ".")
    shop = made.folder / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(tasks)
    file = made.folder / "site1" / "settings.py"
    driver = "\nimport pymysql\npymysql.install_as_MySQLdb()\n" if request.param == "mariadb" else ""
    common = COMMON % database_of(request, request.param)
    file.write_text(file.read_text() + driver + common + settings)
    made.run("manage.py", "migrate", "--verbosity", "0")
    return made
