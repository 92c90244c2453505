"""The wheel in a fresh environment: the core needs no extra, and a missing extra is named in one line."""

import re
import runpy
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import REPOSITORY, Environment, environment

LIFE = """
from freshq import Queue, TaskStatus, Worker
queue = Queue.memory(max_age_seconds=60)
queue.put({"n": 1}, task_id="one")
report = Worker(queue, lambda task: task.payload["n"] + 1, idle_exit_seconds=0.05).run()
task = queue.get("one")
assert task.status is TaskStatus.SUCCESS and task.result == 2, task
print("done")
"""


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def with_cli_and_sql(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(wheel, tmp_path_factory.mktemp("extras"), "cli", "sql")


def test_the_dashboard_has_its_page(wheel: Path) -> None:
    source = REPOSITORY / "layers" / "freshq" / "freshq" / "cli" / "dashboard" / "static"
    files = {f"freshq/cli/dashboard/static/{file.name}" for file in source.iterdir()}

    assert {"freshq/cli/dashboard/static/index.html", "freshq/cli/dashboard/static/main.js"} < files
    assert files <= set(zipfile.ZipFile(wheel).namelist())


def test_a_store_of_sql_has_its_statements(wheel: Path, with_cli_and_sql: Environment) -> None:
    source = REPOSITORY / "layers" / "freshq" / "freshq" / "stores" / "sql"
    files = {f"freshq/stores/sql/{file.name}" for file in source.glob("*.sql")}
    claimed = (
        "from freshq import Queue\n"
        "queue = Queue.sql('sqlite:///claimed.db'); queue.create_table(); queue.put('here')\n"
        "print([claim.task.payload for claim in queue.claim()])\n"
    )

    assert "freshq/stores/sql/claim.postgresql.sql" in files
    assert files <= set(zipfile.ZipFile(wheel).namelist())
    ran = with_cli_and_sql.run("python", "-c", claimed)
    assert ran.stdout == "['here']\n", ran.stderr


def test_the_readme_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = files.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    _headers, _, readme = metadata.partition("\n\n")
    assert readme.startswith("# freshq")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", readme) == []
    assert readme.rstrip().endswith("in the folder `docs`.")


def test_with_an_address_of_the_source_links_lead_there() -> None:
    readme = "[a](docs/a.md#b) ![c](docs/c.png) [d](https://example.org) [e](#f)"
    made = runpy.run_path(str(REPOSITORY / "hatch_build.py"))["standalone"](readme, "https://example.org/v1")
    within = "[a](https://example.org/v1/docs/a.md#b) ![c](https://example.org/v1/docs/c.png)"
    assert made == f"{within} [d](https://example.org) [e](#f)"


def test_the_core_works_bare(bare: Environment) -> None:
    ran = bare.run("python", "-c", LIFE)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


def test_the_core_imports_no_package_of_an_extra(bare: Environment) -> None:
    program = LIFE + (
        "import sys\n"
        "extras = 'boto3 botocore sqlalchemy typer rich prompt_toolkit cronsim pydantic_settings'.split()\n"
        "print([name for name in extras if name in sys.modules])\n"
    )

    assert bare.run("python", "-c", program).stdout == "done\n[]\n"


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from freshq import Queue; Queue.sql('sqlite:///tasks.db')", "sql"),
        ("from freshq import Queue; Queue.dynamodb('Tasks')", "aws"),
        ("from freshq import Queue; Queue.dynamodb('Tasks', attach=True, key='id')", "aws"),
        ("from freshq import MatchQueue; MatchQueue.dynamodb('Agents')", "aws"),
        ("from freshq.feeds import Cron; Cron('0 9 * * *')", "cron"),
    ],
)
def test_what_needs_an_extra_names_it(bare: Environment, program: str, extra: str) -> None:
    ran = bare.run("python", "-c", program)

    assert ran.returncode == 1
    assert f"pip install 'freshq[{extra}]'" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(("command", "extra"), [("freshq", "cli"), ("freshq-pipeline", "pipeline")])
def test_a_command_without_its_extra_says_so_in_one_line(bare: Environment, command: str, extra: str) -> None:
    ran = bare.run(command, "--help")

    assert ran.returncode != 0
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert f"pip install 'freshq[{extra}]'" in ran.stderr


def test_the_command_works_on_sqlite_with_its_extras(with_cli_and_sql: Environment) -> None:
    queue = "sqlite:///tasks.db"
    assert with_cli_and_sql.run("freshq", "table", "create", queue).returncode == 0
    put = with_cli_and_sql.run("freshq", "put", '{"n": 1}', "--task-id", "one", "--queue", queue)
    listed = with_cli_and_sql.run("freshq", "ls", "--queue", queue)

    assert put.returncode == 0, put.stderr
    assert "one" in listed.stdout


def test_a_command_that_needs_another_extra_names_it(with_cli_and_sql: Environment) -> None:
    ran = with_cli_and_sql.run("freshq", "stats", "--queue", "dynamodb://Tasks")

    assert ran.returncode != 0
    assert len(ran.stderr.splitlines()) == 1
    assert "pip install 'freshq[aws]'" in ran.stderr
