"""The command `freshq simulate`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from freshq.cli.main import app
from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.policy.shedding import ShedReason
from freshq.simulate import Source, load_sweep, policies, simulate_load, summarize

PNG = b"\x89PNG"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def measures(*arguments: str) -> Any:
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_json_has_the_results_of_the_library() -> None:
    printed = measures(
        "--rate", "30", "--duration", "100", "--order", "fifo", "--reserve", "1", "--seed", "5"
    )
    rules = OverloadRules(10.0, Order.FIFO)
    assert printed.keys() >= {
        "goodput_ratio", "shed_ratio", "wait_p50_seconds", "wait_p99_seconds", "wasted_ratio",
        "shed_by_reason", "recovery_seconds",
    }  # fmt: skip
    assert printed["shed_by_reason"].keys() == set(ShedReason)
    assert printed["shed_by_reason"]["reserve"] > 0
    named = ("--rate", "30", "--duration", "100", "--order", "fifo", "--seed", "5")
    plain = measures(*named, "--reserve", "none")
    result = summarize(simulate_load(Source(30.0, 100.0, 10.0, seed=5).load(), rules, 10))
    assert plain["goodput_ratio"] == result.goodput_ratio
    # By default fifo has a reserve.
    assert measures(*named) == measures(*named, "--reserve", "p90")


def test_with_its_default_reserve_fifo_survives_an_overload() -> None:
    named = ("--rate", "30", "--order", "fifo", "--duration", "300")
    assert [
        done["served_in_time"] / done["offered"]
        for done in (measures(*named, "--reserve", "none"), measures(*named))
    ] == [pytest.approx(0.02, abs=0.01), pytest.approx(0.3, abs=0.02)]


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("service", ["exp", "det", "lognormal"])
def test_every_order_and_service(order: Order, service: str) -> None:
    done = measures("--rate", "20", "--duration", "50", "--order", order.value, "--service", service)
    assert 0 < done["served_in_time"] < done["offered"]


def test_all_options_together() -> None:
    done = measures(
        "--arrivals", "deterministic", "--groups", "quiet=2,flood=30", "--fair",
        "--priorities", "0=0.9,9=0.1",
        "--servers", "4", "--service", "det", "--service-mean", "0.5", "--deadline-seconds", "5", "--order",
        "fifo", "--reserve", "p90", "--codel", "0.3,0.5", "--backlog", "20,refuse-newest,0.5",
        "--admission", "2", "--burst", "5@30+10",
        "--duration", "100", "--seed", "3",
    )  # fmt: skip
    assert done["by_group"].keys() == {"quiet", "flood"}
    assert done["shed_by_reason"]["group"] > 0


def test_weights_and_parents_of_groups() -> None:
    short = ("--duration", "300")
    done = measures("--groups", "acme=30@3,other=30", *short)["by_group"]
    assert done["acme"]["served_in_time"] == pytest.approx(3 * done["other"]["served_in_time"], rel=0.05)
    named = ("--groups", "acme/1=15,acme/2=15,acme/3=15,other=15", *short)
    done = measures(*named, "--separator", "/")["by_group"]
    children = [done[f"acme/{number}"]["served_in_time"] for number in (1, 2, 3)]
    assert done["other"]["served_in_time"] == pytest.approx(sum(children), rel=0.05)
    # They share time, and one child's tasks take longer than another's by chance.
    assert children == pytest.approx([sum(children) / 3] * 3, rel=0.15)
    done = measures(*named, "--fair")["by_group"]
    assert done["other"]["served_in_time"] == pytest.approx(done["acme/1"]["served_in_time"], rel=0.1)
    for wrong in ("acme=3@0", "acme=3@", "acme=3@2000", "acme=3@x"):
        refused = invoke("--groups", wrong)
        assert refused.exit_code == 2
        assert "groups" in refused.stderr


def test_limits_of_groups() -> None:
    named = ("--groups", "flood=30,quiet=1", "--duration", "200")
    done = measures(*named, "--max-running", "flood=4")["by_group"]
    assert done["flood"]["served_in_time"] == pytest.approx(4 * 200, rel=0.1)
    assert done["quiet"]["wait_p99_seconds"] == 0
    done = measures(*named, "--start-rate", "*=0.5")["by_group"]
    assert [done[name]["served_in_time"] for name in ("flood", "quiet")] == [pytest.approx(100, rel=0.1)] * 2
    parents = ("--groups", "acme/1=15,acme/2=15", "--separator", "/", "--duration", "200")
    done = measures(*parents, "--max-running", "acme=3,*=2")
    assert done["served_in_time"] == pytest.approx(3 * 200, rel=0.1)


def test_clients_that_try_again_after_an_outage() -> None:
    named = (
        "--rate", "7", "--deadline-seconds", "none", "--client-timeout", "5", "--client-retries", "3",
        "--dip", "60+30x0", "--duration", "180",
    )  # fmt: skip
    newest, oldest = measures(*named), measures(*named, "--order", "fifo")
    assert len(newest["goodput_by_10_seconds"]) == 18
    assert newest["goodput_by_10_seconds"][7:9] == [0, 0]
    assert sum(newest["goodput_by_10_seconds"][12:]) > 6 * 6
    assert sum(oldest["goodput_by_10_seconds"][12:]) < 1
    assert newest["recovery_seconds"] > 0
    assert oldest["recovery_seconds"] is None
    assert newest["by_level"].keys() == {"0"}
    assert f"counting {newest['put_again']:,} that clients put again" in invoke(*named).stdout.replace(
        "\n", " "
    )


def test_waits_by_level() -> None:
    named = (
        "--rate", "9", "--priorities", "0=0.5,9=0.5", "--order", "fifo", "--deadline-seconds", "none",
        "--duration", "300",
    )  # fmt: skip
    by_level = measures(*named)["by_level"]
    assert by_level["9"]["wait_mean_seconds"] < by_level["0"]["wait_mean_seconds"]
    second = by_level["9"]["wait_second_moment_square_seconds"]
    assert second > by_level["9"]["wait_mean_seconds"] ** 2
    slow = measures(*named, "--slowdown", "work=0.05")
    assert slow["load"] > 1.2


def test_the_result_as_a_table() -> None:
    done = invoke("--rate", "20", "--duration", "50")
    assert done.exit_code == 0
    assert "goodput ratio" in done.stdout
    assert "expired" in done.stdout


def test_a_file_of_arrivals(tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("".join(f'{{"at_seconds": {n / 10}}}\n' for n in range(100)), "utf-8")
    assert measures("--arrivals", str(file), "--servers", "2")["offered"] == 100
    file.write_text('{"at_seconds": 0}\n{"at_seconds": oops}\n', "utf-8")
    done = invoke("--arrivals", str(file))
    assert done.exit_code == 2
    assert f"{file}, line 2: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "rate: give either rate, or groups"),
        (["--rate", "0"], "rate_per_second: must be greater than 0"),
        (["--rate", "-1"], "rate_per_second: must be greater than 0"),
        (["--rate", "nan"], "rate_per_second: must be greater than 0"),
        (["--rate", "1e12"], "duration_seconds: about"),
        (["--rate", "1", "--deadline-seconds", "0"], "deadline_seconds: must be greater than 0"),
        (["--rate", "1", "--duration", "0"], "duration_seconds: must be greater than 0"),
        (["--rate", "1", "--service-mean", "0"], "service_mean_seconds: must be greater than 0"),
        (["--rate", "1", "--servers", "0"], "servers: must be from 1"),
        (["--rate", "1", "--groups", "a=1"], "rate: give either rate, or groups"),
        (["--groups", "a"], "groups: must look like NAME=NUMBER"),
        (["--groups", "a=1,a=2"], "groups: must look like NAME=NUMBER"),
        (["--rate", "1", "--priorities", "10=1"], "priorities: a level must be from 0 to 9"),
        (["--rate", "1", "--codel", "0.5,1"], "codel: works only with order=fifo"),
        (["--rate", "1", "--order", "adaptive", "--codel", "0.5,1"], "codel: works only with order=fifo"),
        (["--rate", "1", "--codel", "0.5"], "codel: "),
        (["--rate", "1", "--reserve", "10"], "reserve: 10.0 s leave no time"),
        (["--rate", "1", "--reserve", "soon"], "reserve: must be seconds"),
        (["--rate", "1", "--backlog", "0"], "max_waiting: must be 1 or more"),
        (["--rate", "1", "--backlog", "5,drop-oldest,0.5"], "group_share: needs fair"),
        (["--rate", "1", "--fair"], "fair: needs groups"),
        (["--groups", "a=1", "--max-running", "a=1.5"], "groups: max_running: must be a whole number"),
        (["--groups", "a=1", "--start-rate", "a"], "start_rate: must look like NAME=NUMBER"),
        (["--rate", "1", "--max-running", "a=1"], "fair: needs groups"),
        (["--rate", "1", "--admission", "0.5"], "admission: must be a multiple"),
        (["--rate", "1", "--burst", "10"], "burst: must look like FACTOR@START+SECONDS"),
        (["--rate", "1", "--burst", "2@900+200"], "burst: must end before the run does"),
        (["--rate", "1", "--client-retries", "3"], "client_retries: needs client_timeout"),
        (["--rate", "1", "--client-timeout", "0"], "client_timeout: must be greater than 0"),
        (["--rate", "1", "--dip", "60+30"], "dip: must look like START+SECONDSxFACTOR"),
        (["--rate", "1", "--slowdown", "load=1"], "slowdown: must name work or backlog"),
        (["--sweep", "--dip", "60+30x0"], "leave out --dip"),
        (["--sweep", "--deadline-seconds", "none"], "deadline_seconds: a sweep and a plot need one"),
        (["--arrivals", "sometimes"], "arrivals: must be poisson, deterministic or a file"),
        (["--arrivals", "no.jsonl"], "no.jsonl: cannot be read"),
        (["--arrivals", "no.jsonl", "--rate", "1"], "rate: cannot be used with a file"),
        (["--sweep", "--rate", "1"], "sweep: chooses policies and loads itself; leave out --rate"),
        (["--sweep", "--backlog", "1"], "leave out --backlog"),
        (["--sweep", "--arrivals", "no.jsonl"], "sweep: sets the rate itself"),
        (["--sweep", "--plot", "picture.pdf"], "plot: must end in .png, .svg, .html"),
        (["--sweep", "--plot", "no/such/folder/picture.png"], "plot: there is no folder"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(arguments: list[str], why: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("freshq: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_plot_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    done = invoke("--rate", "1", "--plot", "picture.png")
    assert done.exit_code == 2
    assert "altair is not installed; try: pip install 'freshq[plot]'" in done.stderr


def test_simulate_does_not_load_the_extra() -> None:
    """Only a plot needs it, and it is slow to load."""
    program = "import sys, freshq.cli.main; sys.exit('altair' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_sweep_prints_a_table_and_ends_in_a_sentence() -> None:
    done = invoke("--sweep", "--servers", "4", "--duration", "30")
    assert done.exit_code == 0
    for name in policies(10.0, 4):
        assert name in done.stdout
    assert re.fullmatch(
        r"At 3 times the capacity, .* use \d+% of it for tasks done in time, FIFO \d+%\.",
        done.stdout.splitlines()[-1],
    )
    cells = measures("--sweep", "--servers", "2", "--duration", "20")
    assert len(cells) == 9 * len(policies(10.0, 2))
    assert {cell["load"] for cell in cells} >= {0.5, 10.0}
    assert cells[0]["result"]["goodput_ratio"] > 0


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_a_plot_of_several_policies(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"picture.{suffix}"
    done = invoke(
        "--rate", "8", "--order", "fifo", "--reserve", "0.5", "--duration", "20", "--plot", str(file)
    )
    assert done.exit_code == 0, done.stderr
    drawn = file.read_bytes()
    assert drawn.startswith(PNG) if suffix == "png" else b"as given" in drawn and b"this run, at 0.8" in drawn
    assert len(drawn) > 5000
    if suffix == "html":
        assert b"<script src=" not in drawn, "must open without a network"


def test_a_standard_policy_is_plotted_once(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    assert invoke("--rate", "8", "--duration", "20", "--plot", str(file)).exit_code == 0
    assert "as given" not in file.read_text("utf-8")
    assert "this run, at" in file.read_text("utf-8")


def test_all_policies_of_a_sweep_see_the_same_arrivals() -> None:
    cells = list(load_sweep(policies(10.0, 2), 2, duration_seconds=20.0))
    by_load: dict[float, set[int]] = {}
    for cell in cells:
        by_load.setdefault(cell.load, set()).add(cell.result.offered)
    assert all(len(offered) == 1 for offered in by_load.values())


def test_a_simulation_begins_with_a_sentence() -> None:
    done = invoke("--rate", "30", "--deadline-seconds", "10", "--order", "lifo")
    sentence = done.stdout.splitlines()[0]
    assert sentence.startswith("At 3 times the capacity, 3")
    assert sentence.endswith("s.")
    assert " are done in time and 6" in sentence
    late = invoke("--rate", "30", "--order", "fifo", "--duration", "100").stdout.splitlines()[0]
    assert "% are done too late, which takes" in late
    assert invoke("--rate", "0.001", "--duration", "1").stdout.splitlines()[0] == "No task arrived."


def test_the_sentence_comes_first_and_zeros_are_left_out() -> None:
    shown = invoke("--rate", "30", "--servers", "10", "--duration", "100").stdout.splitlines()
    assert shown[0].startswith("At 3")
    rows = [line.rsplit(maxsplit=1) for line in shown[1:] if line.strip()]
    assert {"served in time", "shed by reason: expired"} <= {row[0].strip() for row in rows}
    assert not {"0", "-", "0.0000"} & {row[-1] for row in rows}


VALUES = "10=0.2@8,4=0.3@3,1=0.5"


def test_values_show_what_was_delivered_of_what_was_offered_and_possible() -> None:
    named = ("--rate", "30", "--duration", "100", "--values", VALUES)
    newest, best = (measures(*named, "--order", order)["value"] for order in ("lifo", "value"))
    assert best.keys() == {"delivered", "offered", "of_offered_ratio", "possible", "of_possible_ratio"}
    assert best["offered"] == newest["offered"] > best["possible"] == newest["possible"]
    assert best["delivered"] > 1.6 * newest["delivered"]
    assert best["of_offered_ratio"] == pytest.approx(best["delivered"] / best["offered"])
    assert best["of_possible_ratio"] == pytest.approx(best["delivered"] / best["possible"])
    said = invoke(*named, "--order", "value").stdout
    share = f"{best['of_possible_ratio']:.0%}"
    assert said.splitlines()[0].endswith(f"and {share} of the most that can be expected.")
    assert "value: delivered" in said
    assert measures("--rate", "30", "--duration", "20")["value"] is None


def test_a_sweep_with_values_compares_the_orders_by_the_value_delivered() -> None:
    named = ("--sweep", "--servers", "4", "--duration", "30", "--values", VALUES)
    cells = measures(*named)
    at_three = {
        cell["policy"]: cell["result"]["value"]["of_possible_ratio"] for cell in cells if cell["load"] == 3
    }
    assert at_three.keys() == policies(10.0, 4, by_value=True).keys() > policies(10.0, 4).keys()
    assert max(at_three, key=at_three.__getitem__) == "value"
    assert re.search(
        r"At 3 times the capacity, the share of the possible value is \d+% with value, \d+% with FIFO\.",
        invoke(*named).stdout,
    )


def test_random_max_ages_have_the_deadline_as_their_mean() -> None:
    """Erlang-A: half of the tasks leave at twice the capacity, in every order."""
    named = ("--rate", "20", "--duration", "1000", "--deadline", "exp", "--reserve", "none")
    for order in ("lifo", "fifo"):
        assert measures(*named, "--order", order)["shed_ratio"] == pytest.approx(0.5, abs=0.02)
    values = measures("--rate", "20", "--deadline", "exp", "--values", "2=1@1,1=1", "--duration", "100")[
        "value"
    ]
    assert 0 < values["delivered"] < values["possible"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        *(
            (("--values", text), "values: must look like VALUE=SHARE,VALUE=SHARE@SECONDS")
            for text in ("10", "10=x", "x=1", "10=1,10.0=2", "0=1", "-1=1", "nan=1", "inf=1", "1=0", "1=nan",
                         "1=1@", "1=1@0", "1=1@inf", "1=1@2@3", "1e13=1", "1=1,", "")
        ),
        (("--values", "10=1@80"), "the max age of value 10 must be at most deadline_seconds, 10 s, got 80 s"),
        (("--deadline", "exp", "--deadline-seconds", "none"), "deadline: exp needs deadline_seconds"),
        (("--deadline", "uniform"), "det"),
        (("--values", VALUES, "--plot", "plot.svg"), "plot: shows neither values nor random max ages"),
        (("--deadline", "exp", "--plot", "plot.svg"), "plot: shows neither values nor random max ages"),
    ],
)  # fmt: skip
def test_wrong_values_and_deadlines_are_one_clear_error(arguments: tuple[str, ...], why: str) -> None:
    done = invoke("--rate", "30", "--duration", "10", *arguments)
    assert done.exit_code != 0
    assert why in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", [("--values", VALUES), ("--deadline", "exp")])
def test_a_file_of_arrivals_has_its_own_max_ages_and_no_values(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text('{"at_seconds": 0.5}\n', "utf-8")
    done = invoke("--arrivals", str(file), *option)
    assert done.exit_code != 0
    assert f"{option[0].removeprefix('--')}: cannot be used with a file of arrivals" in done.stderr


def test_a_sweep_refuses_random_max_ages() -> None:
    done = invoke("--sweep", "--deadline", "exp")
    assert "sweep: chooses policies and loads itself; leave out --deadline" in done.stderr
