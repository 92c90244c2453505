"""A project made by `django-admin startproject`, with freshq in it, on each database."""

import json
import os
import subprocess
import sys
import uuid
from contextlib import closing
from dataclasses import dataclass
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

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run Python with arguments in the folder; return its output."""
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "site1.settings", "PYTHONWARNINGS": "error"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + (done.stderr if status else "")

    def does(self, program: str) -> Any:
        """Return the findings of a program."""
        # SQLite lets nobody else begin a transaction, but reads go on.
        return json.loads(self.run("-c", f"{BEGIN}\nQUERY = True\n{program}").splitlines()[-1])


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
