"""The commands `freshq advise` and `freshq replay`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from freshq import Queue
from freshq.cli.commands.recording import command_of
from freshq.cli.main import app
from freshq.simulate import Source, advice


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw fewer recordings; `tests/unit/simulate/test_advice.py` tests what their number decides."""
    monkeypatch.setattr(advice, "RESAMPLES", 4)


@pytest.fixture
def overloaded(tmp_path: Path) -> Path:
    """Return a recording of twice the capacity of 10 servers; one task of ten never ran."""
    load = Source(20.0, 100.0, 10.0, seed=1).load()
    lines = [
        {"at_seconds": 1e9 + at, "deadline_seconds": 10.0} | ({"service_seconds": own} if n % 10 else {})
        for n, (at, own) in enumerate(zip(load.created, load.service, strict=True))
    ]
    file = tmp_path / "load.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    file = tmp_path / "fifo.toml"
    file.write_text('order = "fifo"\nreserve = "none"\nservers = 10\n')
    return file


def test_advice_in_three_lines(overloaded: Path, fifo: Path) -> None:
    done = invoke("advise", overloaded, "--settings", fifo)
    assert done.exit_code == 0, done.stderr
    what, sure, servers = done.stdout.splitlines()
    assert re.match(r"Set .*: \d+\.\d% of the tasks are done in time, instead of \d+\.\d%\.", what)
    assert re.match(r"That is \+\d+\.\d\d points \(95% interval \+\d+\.\d\d to \+\d+\.\d\d\)\. ", sure)
    assert servers.startswith("11 servers instead of 10 bring +")
    assert "of 2,0" in servers
    assert "which never ran, were drawn. freshq configure --" in servers


def test_todays_settings_are_those_of_a_queue(overloaded: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    queue = Queue.sql(url, name="mail")
    queue.create_table()
    queue.configure(order="fifo", reserve="none", max_age_seconds=10)
    of_queue = invoke("advise", overloaded, "--queue", url, "--name", "mail", "--servers", 10, "--json")
    assert of_queue.exit_code == 0, of_queue.stderr
    assert of_queue.stderr == ""
    found: Any = json.loads(of_queue.stdout)
    assert found["today_share"] < 0.2, "oldest first without a reserve"
    assert found["settings"]["order"] != "fifo"
    of_new = invoke("advise", overloaded, "--servers", 10)
    assert "compared with the options of a new queue" in of_new.stderr
    missing = invoke("advise", overloaded, "--queue", url, "--name", "mail")
    assert missing.exit_code == 2
    assert "servers: not known; give --servers" in missing.stderr


def test_no_difference_is_said(overloaded: Path) -> None:
    done = invoke("advise", overloaded, "--servers", 40, "--table")
    first, second, *table = done.stdout.splitlines()
    assert first.startswith("No difference: keep today's settings, with which ")
    assert "No difference to " in second
    assert "configure" not in done.stdout
    assert any("today's settings" in line for line in table)


def test_advice_as_json(overloaded: Path, fifo: Path, tmp_path: Path) -> None:
    plot = tmp_path / "advice.svg"
    done = invoke("advise", overloaded, "--settings", fifo, "--servers", 9, "--json", "--plot", plot)
    answer: Any = json.loads(done.stdout)
    assert answer["servers"] == 9
    assert answer["no_difference"] is False
    assert answer["best"]["gain"]["low"] > 0
    assert answer["command"] == command_of(answer["settings"])
    assert answer["stack_command"].startswith("freshq configure --stack NAME --")
    assert len(answer["answer"]) == 3
    assert answer["compared"][0]["share"] >= answer["compared"][-1]["share"]
    assert answer["drawn"] == pytest.approx(answer["tasks"] / 10, abs=1)
    assert "points" in plot.read_text("utf-8")


def test_which_outage_tips_an_order_over(overloaded: Path) -> None:
    done = invoke("advise", overloaded, "--servers", 30, "--outage", "--objective", "0.9@2s")
    lines = done.stdout.splitlines()[3:]
    assert [line.partition(":")[0] for line in lines] == [
        "fifo without a deadline", "fifo without a reserve", "fifo", "adaptive", "lifo",
    ]  # fmt: skip
    assert re.search(r"an outage of [\d.]+ s tips it over", lines[0])
    assert "no outage that was tried tips it over; after " in lines[-1]


def test_the_command_is_one_that_configure_takes() -> None:
    assert command_of({}) is None
    changes = {"order": "fifo", "max_age_seconds": "5", "backlog": "10,drop-oldest"}
    assert command_of(changes) == (
        "freshq configure --order fifo --max-age-seconds 5 --backlog 10,drop-oldest"
    )


def test_replay(overloaded: Path, fifo: Path, tmp_path: Path) -> None:
    now = tmp_path / "now.toml"
    now.write_text("servers = 10\n")
    worse = invoke("replay", overloaded, "--settings", now, "--against", fifo, "--fail-if", "in_time<-1%")
    assert worse.exit_code == 1
    assert re.match(
        r"worse: in_time: \d+\.\d\d% instead of \d+\.\d\d%, -\d+\.\d\d points \(95% interval -", worse.stdout
    )
    better = invoke("replay", overloaded, "--settings", fifo, "--against", now, "--json")
    assert better.exit_code == 0
    assert json.loads(better.stdout)["fails"] is False
    same = invoke("replay", overloaded, "--settings", now, "--against", now, "--fail-if", "value<-0.1%")
    assert same.exit_code == 0
    assert "+0.00 points" in same.stdout


def test_a_recording_with_values_is_judged_by_value(tmp_path: Path) -> None:
    load = Source(30.0, 8.0, 10.0, values={10.0: 0.2, 1.0: 0.8}, seed=1).load()
    rows = zip(load.created, load.service, load.values, strict=True)
    lines = [{"at_seconds": at, "service_seconds": own, "deadline_seconds": 10.0, "value": value}
             for at, own, value in rows]  # fmt: skip
    file, lifo, value = (tmp_path / name for name in ("load.jsonl", "lifo.toml", "value.toml"))
    file.write_text("\n".join(map(json.dumps, lines)))
    lifo.write_text("servers = 10\n")
    value.write_text('servers = 10\norder = "value"\n')
    done = invoke("advise", file, "--settings", lifo, "--table")
    assert re.match(
        r"Set order=value: \d+\.\d% of the value is delivered, instead of \d+\.\d% "
        r"\(of the tasks, \d+\.\d% instead of \d+\.\d% are in time\)\.",
        done.stdout,
    ), done.stdout
    assert "freshq configure --order value" in done.stdout
    assert re.search(r"settings +value +in time +change +95% interval", done.stdout)
    in_time = invoke("advise", file, "--settings", lifo, "--objective", "in-time")
    assert "of the tasks are done in time" in in_time.stdout
    worse = invoke("replay", file, "--settings", value, "--against", lifo)
    assert worse.exit_code == 1
    assert re.match(r"worse: value: .*; in time: \d+\.\d\d% instead of \d+\.\d\d%;", worse.stdout)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["advise", "no.jsonl"], "no.jsonl: cannot be read"),
        (["advise", "{}", "--servers", "0"], "servers: must be from 1"),
        (["advise", "{}"], "servers: not known; give --servers"),
        (
            ["advise", "{}", "--queue", "memory:", "--settings", "a.toml"],
            "settings: give --settings or --queue",
        ),
        (["advise", "{}", "--servers", "3", "--name", "mail"], "name: names a queue of --queue"),
        (["advise", "{}", "--objective", "fast"], "objective: must be in-time, value"),
        (["advise", "{}", "--settings", "no.toml"], "no.toml: cannot be read"),
        (["advise", "{}", "--plot", "a.pdf"], "plot: must end in"),
        (["replay", "{}", "--settings", "no.toml", "--against", "no.toml"], "no.toml: cannot be read"),
        (
            ["replay", "{}", "--settings", "a.toml", "--against", "a.toml", "--fail-if", "in_time"],
            "fail_if: must look like",
        ),
    ],
)
def test_bad_input_is_one_clear_line(overloaded: Path, arguments: list[str], why: str) -> None:
    done = invoke(*(str(overloaded) if each == "{}" else each for each in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
