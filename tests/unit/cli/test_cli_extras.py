"""The command without its extras: one line that names the extra to install."""

import subprocess

import pytest

from tests.support.programs import python

PROGRAM = """
import sys
from freshq.cli.__main__ import main
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
main()
"""
DYNAMODB = ["--queue", "dynamodb://Tasks"]


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that cannot import some packages."""
    return python("-c", PROGRAM, packages, *arguments, check=False)


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("typer", "cli", ["--help"]),
        ("rich", "cli", ["stats", "--queue", "memory://"]),
        ("boto3", "aws", ["stats", *DYNAMODB]),
        ("boto3", "aws", ["stats", *DYNAMODB, "--name", "mail"]),
        ("boto3", "aws", ["stats", "--queue", "dynamodb://Tasks?region=eu-west-1"]),
        ("boto3", "aws", ["stats", "--stack", "app"]),
        ("boto3", "aws", ["table", "attach", "Tasks", "--key", "id"]),
        ("botocore", "aws", ["table", "create", "tables.json"]),
        ("boto3", "aws", ["match", "list", "--queue", "dynamodb://Agents"]),
        ("sqlalchemy", "sql", ["stats", "--queue", "sqlite:///tasks.db"]),
        ("sqlalchemy", "sql", ["table", "create", "sqlite:///tasks.db"]),
        ("sqlalchemy", "sql", ["relay", "--from", "sqlite:///tasks.db", "--to", "memory://"]),
        ("starlette", "dashboard", ["dashboard", "--queue", "memory://"]),
        ("uvicorn", "dashboard", ["dashboard", "--queue", "memory://"]),
        ("prometheus_client", "metrics", ["metrics", "--queue", "memory://"]),
        ("opentelemetry", "otel", ["stats", "--queue", "memory://?telemetry=opentelemetry"]),
        ("uvicorn", "http", ["serve", "--queue", "memory://"]),
        ("altair", "plot", ["simulate", "--rate", "1", "--plot", "plot.png"]),
    ],
)
def test_a_missing_extra_is_one_line(package: str, extra: str, arguments: list[str]) -> None:
    done = without(package, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("freshq: ")
    assert f"{package} is not installed" in done.stderr
    assert f"pip install 'freshq[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_other_commands_need_neither_the_cloud_nor_a_database() -> None:
    done = without(
        "boto3,botocore,pydantic_settings,sqlalchemy,altair,cronsim", "stats", "--queue", "memory://"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pending" in done.stdout


def test_the_module_is_the_command() -> None:
    done = python("-m", "freshq.cli", "--version")
    assert done.stdout.startswith("0.")
