"""Sections of docs/compare.md and overload.md, and of contributors' pages about the library."""

from __future__ import annotations

from itertools import product
from operator import truediv
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from benchmarks import overload_setting as setting
from benchmarks.costs_page import all_steps, most_passed_over, scale_sections
from benchmarks.fair import DEADLINE
from benchmarks.figures import figures_of, read
from benchmarks.render import Block, Prose, Sections, Table, across, bold, columns, spread
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SETTINGS: Final = {
    "off": "none",
    "no SDK": "`OpenTelemetry()`, no SDK",
    "SDK, not sampled": "with the SDK, no trace sampled",
    "SDK, every trace sampled": "with the SDK, every trace sampled",
}
IMPORT, WITH_CLIENTS = 0, 1
TRACED, UNTRACED = "now", "untraced"
# Packages with a smaller share of the imports are summed.
SHOWN_SHARE: Final = 0.04
SHOWN_LOADS: Final = (0.5, 0.95, 1.1, 2.0, 5.0, 10.0)
SHOWN_POLICY_LOADS: Final = (0.8, 0.95, 1.1, 2.0, 3.0, 10.0)
INTERVAL: Final = "{0[mean]:.2f} ± {0[half_width]:.2f}"
# Names in the results of the part `sql`.
PUT: Final = "freshq, put one by one"
ONE_BY_ONE: Final = "freshq, claim and complete one by one"
BY_TEN: Final = "freshq, claims of 10 and settle_many"
DURABLE: Final = ", durable"
WAYS: Final = {
    PUT: "put one by one",
    ONE_BY_ONE: "claim and complete one by one",
    BY_TEN: "claims and completions of ten",
}


def compare_page() -> Sections:
    """Return the sections of docs/compare.md."""
    return {("worker", "rates"): [rates("postgresql"), rates("sqlite")], ("wake", "latency"): wakes()}


def _of_application(found: Sequence[Mapping[str, Any]]) -> list[Block]:
    text = f"""The deployed application ran on the embedded emulator with {setting.SERVERS} slots, tasks of
        {setting.MEASURED_TASK_SECONDS:g} s and a deadline of {setting.MEASURED_DEADLINE_SECONDS:g} s: one
        stack for each order, side by side with the same arrivals, for
        {max(setting.MEASURED_SECONDS.values()):g} s up to the capacity and
        {min(setting.MEASURED_SECONDS.values()):g} s beyond it. The first {setting.FIRST_SECONDS:g} s do not
        count."""
    seconds = [one["slot_seconds"] for one in found]
    loads = [one["machine_load"] for one in found]
    notes = f"""Shares are of the capacity that follows from the measured time per task in a slot,
        {min(seconds):.2f} to {max(seconds):.2f} s; the load average of the machine was {min(loads):.1f} to
        {max(loads):.1f}. Few tasks arrive below the capacity, so a difference of a few points there is noise.
        FIFO needs minutes at the capacity before its backlog reaches the deadline."""
    return [Prose(text), _application(found), Prose(notes)]


def _application(found: Sequence[Mapping[str, Any]]) -> Table:
    def seconds(which: str) -> Any:
        return lambda one: "" if one[which] is None else f"{one[which]:.2f} s"

    return columns(
        found,
        {
            "order": "{order}",
            "load / capacity": "{load:.2f}",
            "done in time": "{goodput:.2f}",
            "simulated": "{simulated_goodput:.2f}",
            "tasks": "{done} of {arrived}",
            "wait, p50": seconds("wait_p50_seconds"),
            "wait, p99": seconds("wait_p99_seconds"),
        },
    )


def _passed_over() -> Table:
    def shown(name: str, form: str) -> Any:
        return lambda item: spread([run[name] for run in item[1]], form)

    return columns(
        passed_over_runs().items(),
        {
            "claimers": "{0[0]}",
            "claims that skip a newer task": shown("share", ".0%"),
            "positions, mean": shown("mean_places", ".1f"),
            "positions, most": lambda item: f"{max(run['most_places'] for run in item[1])}",
        },
    )


def passed_over_runs() -> dict[int, list[dict[str, Any]]]:
    """Return the runs of the part `passed-over` by number of claimers."""
    found: dict[int, list[dict[str, Any]]] = {}
    for run in figures_of("passed_over")["runs"]:
        found.setdefault(run["claimers"], []).append(run)
    return found


def cold_start_page() -> Sections:
    """Return the sections of docs/contributing/cold-starts.md."""
    result = read("coldstart")
    found, machine = result["figures"], result["machine"]
    text = f"Medians of {found['rounds']} starts in turns, Python {machine['python']}, {machine['system']}:"

    def milliseconds(variant: str, part: int) -> Any:
        return lambda item: f"{item[1][variant][part]:.0f}"

    def ratio(variant: str, part: int) -> Any:
        return lambda item: f"{start_ratio(item[1], variant, part):.2f}"

    table = columns(
        found["processor_ms"].items(),
        {
            "function": lambda item: "".join(word.title() for word in item[0].split("_")),
            "import, ms": milliseconds(TRACED, IMPORT),
            "import and clients, ms": milliseconds(TRACED, WITH_CLIENTS),
            "both with `Tracing=off`, ms": milliseconds(UNTRACED, WITH_CLIENTS),
            "import, ratio": ratio(TRACED, IMPORT),
            "import and clients, ratio": ratio(TRACED, WITH_CLIENTS),
        },
    )
    shares = {name: share for name, share in found["shares_of_imports"].items() if share >= SHOWN_SHARE}
    shares["all others"] = 1 - sum(shares.values())
    imports = columns(
        shares.items(), {"package, without its own imports": "{0[0]}", "share of the time": "{0[1]:.0%}"}
    )
    return {("coldstart", "ratios"): [Prose(text), table], ("coldstart", "imports"): [imports]}


def start_ratio(function: Mapping[str, Any], variant: str, part: int) -> float:
    """Return a function's processor time as a multiple of the time without bytecode."""
    return float(function[variant][part] / function["before"][part])


def overload_page() -> Sections:
    """Return the sections of docs/overload.md."""
    return {("overload_peers", "queues"): _beside_peers(read("overload_peers"))}


def _beside_peers(result: Mapping[str, Any]) -> list[Block]:
    found, machine = result["figures"], result["machine"]
    peers = {name: number for name, number in found["versions"].items() if number and name != "freshq"}
    text = f"""Medians of {found["seeds"]} seeds, with {found["seconds"]:g} s at each load,
        {", ".join(" ".join(peer) for peer in peers.items())}, {machine["cores"]} cores at a load average of
        {machine["load"]} (`make bench PARTS=overload-peers`):"""

    def of(scenario: str, name: str, form: str) -> Any:
        return lambda item: f"{median(run[name] for run in item[1][scenario]):{form}}"

    def share(load: str) -> Any:
        return lambda item: f"{possible_ratio(item[1][load], float(load)):.1%}"

    def wait(item: Any) -> str:
        seconds = [run["median_seconds"] for run in item[1]["3"] if run["median_seconds"] is not None]
        return f"{median(seconds):.2f} s" if seconds else ""

    def back(item: Any) -> str:
        seconds = [run["recovery_seconds"] for run in item[1]["retries"]]
        return "not within the run" if None in seconds else f"{median(seconds):.0f} s"

    table = columns(
        found["contenders"].items(),
        {
            "queue": "{0[0]}",
            **{f"at {load}": share(load) for load in ("0.5", "0.9", "1.5", "3")},
            "put to done at 3": wait,
            "wasted work at 3": of("3", "wasted", ".0%"),
            "left at 3": of("3", "left", ".0f"),
            "back after": back,
        },
    )
    return [Prose(text), table]


def possible_ratio(runs: Sequence[Mapping[str, Any]], load: float) -> float:
    """Return the share of the work done in time that is possible at a load, as the median of the runs."""
    in_time: float = median(run["in_time"] for run in runs)
    return in_time * max(1.0, load)


def measurements_page() -> Sections:
    """Return the sections of docs/contributing/measurements.md."""
    return {
        ("capacity", "all steps"): [all_steps()],
        **scale_sections(),
        **_policies(),
        ("passed_over", "places"): [_passed_over()],
        **_fair(figures_of("fair")),
        **_chains(figures_of("chains")),
        **_limits(figures_of("limits")),
        ("history", "costs"): _history(figures_of("history")),
        ("sql", "durable"): [_durable(figures_of("sql")["sqlite"])],
        ("sql", "postgresql"): _postgresql(read("sql")),
        ("asyncio", "coroutines"): _coroutines(figures_of("asyncio")),
        ("telemetry", "costs"): [_telemetry(figures_of("telemetry")["settings"])],
        ("cli", "commands"): [_commands(figures_of("cli"))],
    }


def _policies() -> Sections:
    found, simulator = figures_of("overload"), figures_of("simulator")
    after_outage = figures_of("outage")["by_load"]
    text = f"""Simulated tasks a second on one core: the fastest of {simulator["rounds"]} runs of
        {simulator["tasks"]:,} tasks, in turns (`make bench PARTS=simulator`)."""
    speeds = across(
        "policy",
        simulator["tasks_per_second"],
        lambda speed: f"{round(speed, -4):,}",
        "at {} times the capacity".format,
    )
    return {
        ("overload", "application"): _of_application(found["application"]),
        ("overload", "orders"): [_by_load(found["by_load"], "order", SHOWN_LOADS)],
        ("overload", "uneven"): [_by_load(found["by_load_uneven"], "order", SHOWN_LOADS)],
        ("overload", "burst"): _burst(found["after_burst"]),
        ("overload", "policies"): [_by_load(found["by_policy"], "policy", SHOWN_POLICY_LOADS)],
        ("overload", "tenants"): [_by_load(found["by_flood"], "tenants", SHOWN_LOADS)],
        ("outage", "shares"): [_by_load(after_outage, "order", (0.5, 0.6, 0.7, 0.8, 0.9))],
        ("simulator", "speed"): [Prose(text), speeds],
    }


def _fair(found: Mapping[str, Any]) -> Sections:
    lengths = [row for row in found["by_length"] if row["deadline"] == DEADLINE]
    short = [row for row in found["by_length"] if row["deadline"] != DEADLINE]
    cell = "{0[quiet]:.3f}, {0[flood]:.2f}"
    rules = columns(
        found["rules"],
        {
            "": "{where}",
            "time of weight 3 / of weight 1": "{ratio:.2f}",
            "victim, 40 keys below one parent": "{victim:.3f}",
            "without a parent": lambda row: str(row.get("victim_without_parent", "")),
            "most at a time, limit 4": lambda row: str(row.get("most_running", "")),
            "most starts in any second, limit 20": lambda row: str(row.get("most_starts", "")),
        },
    )
    scenarios = columns(
        found["scenarios"],
        {
            "backlog": "{scenario}",
            "wait, one line": "{line_wait:,.1f}",
            "with groups": "{groups_wait:,.1f}",
            "makespan, one line": "{line_makespan:,.0f}",
            "makespan, with groups": "{groups_makespan:,.0f}",
        },
    )
    heading = "length of the flood's tasks"
    return {
        ("fair", "lengths"): [_by_place(lengths, heading, "length", cell)],
        ("fair", "short"): [_by_place([*short, *found["bounds"]], heading, "length", cell)],
        ("fair", "rules"): [rules],
        ("fair", "scenarios"): [scenarios],
    }


def _chains(found: Mapping[str, Any]) -> Sections:
    # The short load of a worker has a few long chains more or less, so its work for chains is counted.
    of_workers = [row | {"done": row["busy"] * row["useful"] / 2} for row in found["chains"] if "busy" in row]
    rows = [*(row for row in found["chains"] if "busy" not in row), *of_workers]
    form = "{0[done]:.3f}, {0[useful]:.0%}"
    return {("chains", "chains"): [_by_place(rows, "tasks of a chain", "hops", form)]}


def _limits(found: Mapping[str, Any]) -> Sections:
    claims = columns(
        found["claims"],
        {
            "claim of one task, ms": "{where}",
            "beside 100 groups": "{few_ms:.2f}",
            "4,900 more at their limit": "{many_ms:.2f}",
            "ratio": lambda row: f"{row['many_ms'] / row['few_ms']:.2f}",
        },
    )
    return {("limits", "claims"): [claims]}


def _by_place(rows: Sequence[Mapping[str, Any]], corner: str, column: str, form: str) -> Table:
    """Return a table of rows by where they were found."""
    by_name: dict[str, dict[Any, Any]] = {}
    for row in rows:
        by_name.setdefault(row["where"], {})[row[column]] = row
    return across(corner, by_name, form.format)


def _by_load(rows: Sequence[Mapping[str, Any]], kind: str, loads: Sequence[float]) -> Table:
    by_name: dict[str, dict[float, Any]] = {row[kind]: {} for row in rows}
    for row in rows:
        if row["load"] in loads:
            by_name[row[kind]][row["load"]] = row
    return across("load / capacity", by_name, INTERVAL.format, "{:g}".format)


def _burst(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    most, within = 100 / (setting.BURST_LOAD * setting.BURST_FACTOR), 100 * setting.RECOVERED_WITHIN
    text = f"""A load of {setting.BURST_LOAD:g} of the capacity grows to {setting.BURST_FACTOR:g} times that
    for
        {setting.BURST_SECONDS:g} s, of which at most {most:g} % can be done. Share of tasks done in time by
        the moment of their put, over {len(setting.SEEDS)} seeds with 95 % intervals. Last column: seconds
        after the burst until the share of each second stays within {within:g} points of the share before the
        burst."""
    spans = list(rows[0]["spans"])
    cells = [
        [row["order"], *(INTERVAL.format(row["spans"][span]) for span in spans), recovery(row)]
        for row in rows
    ]
    return [Prose(text), Table(["order", *spans, "recovered after"], cells)]


def recovery(row: Mapping[str, Any]) -> str:
    """Return the time that an order needed to recover."""
    seconds = row["recovery_seconds"]
    return f"not within {setting.FOLLOWED_SECONDS:.0f} s" if seconds is None else f"{seconds:.0f} s"


def _history(found: Mapping[str, Any]) -> list[Block]:
    text = f"""{found["rounds"]} turns of {found["tasks"]} tasks (`make bench PARTS=history`): medians and
        quartiles of the ratios to a table without a history in the same turn. Processor time is the client's,
        so only SQLite's is shown, which runs in the client."""
    quartiles = "{1:.2f} ({0:.2f} to {2:.2f})".format
    rows = [
        [
            f"{database}, {batch} at a time",
            f"{kinds['off']['wall_us'] / 1000:.2f} ms",
            quartiles(*kinds["on"]["wall_ratios"]),
            quartiles(*kinds["of another queue"]["wall_ratios"]),
            quartiles(*kinds["on"]["processor_ratios"]) if database == "SQLite" else "",
        ]
        for database, by_batch in found["databases"].items()
        for batch, kinds in by_batch.items()
    ]
    head = [
        "put, claim and completion",
        "no history, time per task",
        "with a history, ratio",
        "history of another queue, ratio",
        "with a history, processor time, ratio",
    ]
    return [Prose(text), Table(head, rows)]


def _durable(sqlite: Mapping[str, Sequence[float]]) -> Table:
    return columns(
        [(title, sqlite[name + DURABLE], sqlite[name]) for name, title in WAYS.items()],
        {
            "SQLite, one worker, tasks a second": "{0[0]}",
            "durable": lambda row: f"{median(row[1]):,.0f}",
            "`durable=False`": lambda row: f"{median(row[2]):,.0f}",
            "ratio": lambda row: f"{median(map(truediv, row[1], row[2])):.2f}",
        },
    )


def _postgresql(result: Mapping[str, Any]) -> list[Block]:
    found, machine = result["figures"], result["machine"]
    text = f"""Medians of {found["rounds"]} rounds on {machine["cores"]} cores; load average before:
        {machine["load_before"]}."""
    rates = {name: found["postgresql"][name] for name in WAYS}
    table = across(
        "PostgreSQL, tasks a second",
        rates,
        lambda each: f"{median(each):,.0f}",
        lambda number: f"{number} worker{'s' * (number != '1')}",
    )
    return [Prose(text), table]


def _coroutines(found: Mapping[str, Any]) -> list[Block]:
    rows = [each | {"name": f"{name} {each['version']}"} for name, each in found["queues"].items()]
    text = f"""{found["puts"]:,} puts by {found["putters"]} coroutines, and {found["sleepers"]} tasks that
        sleep for {found["sleep_seconds"]:g} s, up to {found["sleepers"]} at a time. Rates and seconds are
        medians of {len(rows[0]["seconds"])} rounds in turns, with the range; the others are maxima."""
    table = columns(
        rows,
        {
            "": "{name}",
            "puts a second": "{puts_per_second:,.0f}",
            f"seconds until all {found['sleepers']} were done": "{seconds:.1f}",
            "most at once": lambda row: f"{max(row['most_sleeping'])}",
            "threads": lambda row: f"{max(row['threads'])}",
            "connections": lambda row: f"{max(row['connections'])}",
        },
    )
    return [Prose(text), table]


def _telemetry(settings: Mapping[str, Mapping[str, float]]) -> Table:
    return columns(
        [{"title": title, **settings[name]} for name, title in SETTINGS.items()],
        {
            "telemetry": "{title}",
            "put, µs": "{put_microseconds:.0f}",
            "put, ratio": "{put_ratio:.1f}",
            "claim, run, settle, µs": "{work_microseconds:.0f}",
            "its ratio": "{work_ratio:.1f}",
        },
    )


def _commands(found: Mapping[str, Any]) -> Table:
    return columns(
        [item for item in found["processor_seconds"].items() if item[0] != "import nothing"],
        {
            "command": lambda item: f"`python -c '{item[0]}'`" if "import" in item[0] else f"`{item[0]}`",
            "processor seconds": "{0[1]:.2f}",
            "at most": lambda item: f"{found['at_most'][item[0]]:.2f}" if item[0] in found["at_most"] else "",
        },
    )


HAND: Final = "claims of ten by hand"
WORKER: Final = "Worker"
FRESHQ: Final = "freshq"
# File of results by number of processes.
FILES: Final = {1: "worker", 2: "worker_two"}
STORES: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
# Slots for which the aims beside other queues hold; the aim beside claims by hand holds for all.
AIMED: Final = ("8", "32")
# Aims of a Worker as a multiple of each contender's rate.
AIMS: Final = {HAND: 0.8, "oban": 2.0, "procrastinate": 10.0, "huey": 2.0}
# Aim of batches as a multiple of single writes, 5 ms away.
AIM_FAR: Final = 5.0
# Further figures by their name in the file.
COUNTED: Final = {
    "processor_us_per_task": "processor time of a task, µs",
    "connections": "connections at most",
}
VERBS: Final = ("put", "put_many(500)", "claim(1)", "claim(10)", "complete", "settle_many(10)")
# Largest multiples of the floor.
FLOOR_AIMS: Final = dict(zip(VERBS, (2.0, 2.8, 2.0, 2.5, 2.0, 2.5), strict=True))


def throughput_page() -> Sections:
    """Return the sections of docs/contributing/throughput.md."""
    sections: Sections = {
        (file, STORES[store]): _tables(read(file), store) for file, store in product(FILES.values(), STORES)
    }
    return sections | {
        ("wake", "latency"): wakes(),
        ("distance", "distance"): _distance(read("distance")),
        ("worker", "bounds"): [_bounds(figures_of("worker")["sqlite"])],
    }


def rates(store: str, slots: Sequence[str] = AIMED) -> Table:
    """Return the tasks a second of each contender in one process, for the users' page."""
    contenders = _by_contender(figures_of(FILES[1])[store], slots)
    return across(f"{STORES[store]}, tasks a second", contenders, _rates, _slots)


def _by_contender(figures: Mapping[str, Any], slots: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the rounds of each contender by slots."""
    found: dict[str, dict[str, Any]] = {}
    for number in slots:
        for name, rounds in figures[number].items():
            found.setdefault(name, {})[number] = rounds
    return found


def _slots(number: str) -> str:
    return f"{number} slot{'s' * (number != '1')}"


def _rates(rounds: Sequence[Mapping[str, float]]) -> str:
    return spread([each["tasks_per_second"] for each in rounds], ",.0f")


def _tables(result: Mapping[str, Any], store: str) -> list[Block]:
    report, machine = result["figures"], result["machine"]
    figures = report[store]
    contenders = _by_contender(figures, figures)
    versions = ", ".join(f"{name} {each}" for name, each in report["versions"].items() if name in contenders)
    missing = f" Not installed, so not measured: {', '.join(report['missing'])}." if report["missing"] else ""
    text = f"""{report["rounds"]} rounds, load average {machine["load"]} at the end; freshq on Python
        {machine["python"]}, the others ({versions}) on {report["peers_python"]}.{missing}"""
    ratios = [
        [name, str(AIMS.get(name, "")), *(ratio_cell(each, name, number) for number, each in figures.items())]
        for name in contenders
        if name != WORKER
    ]
    slots = [*map(_slots, figures)]
    return [
        Prose(text),
        across("tasks a second, median (lowest to highest)", contenders, _rates, _slots),
        Table(["rate of a `Worker`, as a multiple of", "aim", *slots], ratios),
        Table(["median", "contender", *slots], [*_counted(contenders, [*figures])], texts=2),
    ]


def _counted(contenders: Mapping[str, Any], slots: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of further figures."""
    for (what, title), (name, rounds) in product(COUNTED.items(), contenders.items()):
        cells = [_median(rounds.get(number), what) for number in slots]
        if any(cells):
            yield [title, name, *cells]


def _median(rounds: Sequence[Mapping[str, float]] | None, what: str) -> str:
    return f"{median(each[what] for each in rounds):,.0f}" if rounds and what in rounds[0] else ""


def ratio_rounds(contenders: Mapping[str, Any], name: str) -> list[float]:
    """Return a Worker's rate as a multiple of a contender's, by round."""
    pairs = zip(contenders[WORKER], contenders[name], strict=True)
    return [worker["tasks_per_second"] / other["tasks_per_second"] for worker, other in pairs]


def ratio_cell(contenders: Mapping[str, Any], name: str, slots: str) -> str:
    """Return the ratio of a Worker to a contender, bold if it misses its aim."""
    if name not in contenders:
        return ""
    found = ratio_rounds(contenders, name)
    misses = (name == HAND or slots in AIMED) and median(found) < AIMS.get(name, 0)
    return bold(spread(found, ".2f"), when=misses)


def wakes() -> list[Block]:
    """Return the latencies between processes, for both pages."""
    report = read("wake")
    found, machine = report["figures"], report["machine"]
    versions = ", ".join(f"{name} {each}" for name, each in found["versions"].items())
    missing = f" Not installed, so not measured: {', '.join(found['missing'])}." if found["missing"] else ""
    text = f"""`make bench PARTS=wake` puts {found["rounds"] * found["tasks"]} single tasks, in
        {found["rounds"]} turns, for an idle worker with {found["slots"]} slots in another process. The
        contenders are on PostgreSQL unless named otherwise ({versions or "no other queue"}; they keep no
        results). Load average {machine["load_before"]} before, {machine["load"]} at the end.{missing}"""

    def shown(which: str) -> Callable[[Any], str]:
        return lambda item: _percentiles([each[which] for each in item[1] if which in each])

    idle = found["idle_per_second"]
    table = columns(
        found["contenders"].items(),
        {
            "ms, p50 / p99": "{0[0]}",
            "put to start": shown("start_ms"),
            "put to result": shown("result_ms"),
            "idle transactions a second": lambda item: f"{idle[item[0]]:.1f}" if item[0] in idle else "",
        },
    )
    return [Prose(text), table]


def _percentiles(numbers: Sequence[float]) -> str:
    if not numbers:
        return ""
    cuts = quantiles(numbers, n=100, method="inclusive")
    return f"{cuts[49]:.1f} / {cuts[98]:.1f}"


def _distance(result: Mapping[str, Any]) -> list[Block]:
    figures = result["figures"]
    together, alone = figures["delays_ms"]["0"]
    table = columns(
        ({"delay": delay, **rates} for delay, rates in figures["delays_ms"].items()),
        {
            "tasks a second, delay of each answer": "{delay} ms",
            together: lambda row: spread(row[together], ",.0f"),
            alone: lambda row: spread(row[alone], ",.0f"),
            "ratio": lambda row: spread([*map(truediv, row[together], row[alone])], ".1f"),
        },
    )
    near = 1000 / median(figures["delays_ms"]["0"][together])
    worker, server = (
        median(figures[name]["0"][together]) for name in ("worker_processor_ms", "server_processor_ms")
    )
    left = 1000 / (AIM_FAR * median(figures["delays_ms"]["5"][alone]))
    text = f"""{figures["rounds"]} rounds in turns, {figures["slots"]} slots, load average
        {result["machine"]["load"]}. The aim is {AIM_FAR:g} times at 5 ms, which would leave {left:.1f} ms a
        task. Even without a delay a task in batches takes {near:.1f} ms: {worker:.1f} ms of the worker's
        processor time and {server:.1f} ms of the server's, on the same cores."""
    return [table, Prose(text)]


def _bounds(sqlite: Mapping[str, Any]) -> Prose:
    def of(slots: str, contender: str) -> float:
        return float(median(each["processor_us_per_task"] for each in sqlite[slots][contender]))

    huey = f", and huey {of('8', 'huey'):.0f} for its single write" if "huey" in sqlite["8"] else ""
    return Prose(
        f"""On SQLite a task takes {of("1", WORKER):.0f} µs of processor time with one slot,
        {of("8", WORKER):.0f} with 8, {of("32", WORKER):.0f} with 32, by hand {of("8", HAND):.0f}{huey}. Of
        that the worker's records of each run, and handing tasks to threads, take about a third."""
    )


def floor_page() -> Sections:
    """Return the section of docs/contributing/floor.md."""
    result = read("floor")
    found, machine = result["figures"], result["machine"]
    text = f"""Minimum of {found["rounds"]} rounds in turns, {found["tasks"]:,} tasks each, on Python
        {machine["python"]}; load average before: {machine["load_before"]}. Bold ratios miss the aim."""

    def ratio(row: Mapping[str, Any]) -> str:
        shown = f"{row['freshq_us'] / row['floor_us']:.2f}"
        return bold(shown, when=float(shown) > FLOOR_AIMS[row["verb"]])

    table = columns(
        (
            {"database": database, "verb": verb, **each}
            for database, verbs in found["databases"].items()
            for verb, each in verbs.items()
        ),
        {
            "database": "{database}",
            "verb": "{verb}",
            "freshq, µs a task": "{freshq_us:.1f}",
            "floor, µs a task": "{floor_us:.1f}",
            "ratio": ratio,
            "aim, at most": lambda row: f"{FLOOR_AIMS[row['verb']]:.1f}",
        },
        texts=2,
    )
    return {("floor", "ratios"): [Prose(text), table]}


GROWTH_STORES: Final = {
    "memory": "memory",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "dynamodb": "DynamoDB Local",
}
SITUATIONS: Final = ("waiting", "beside stale, LIFO", "beside stale, FIFO", "beside finished", "groups")
GROUPS: Final = "groups"
GROWTH_AIM: Final = 1.2
GROWTH_AIM_OF_GROUPS: Final = 2.0


def growth_page() -> Sections:
    """Return the sections of docs/contributing/growth.md."""
    report = {store: figures_of(f"growth_{store}") for store in GROWTH_STORES}
    sections = growth_sections(report, figures_of("capacity"))
    sections["horizon", "pages"] = [horizon_table(figures_of("horizon"))]
    return sections


def horizon_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of claims while a snapshot is open.

    Args:
        found: Figures of the part `horizon`.
    """
    return columns(
        found,
        {
            "queue": "{queue}",
            "tasks finished": "{finished:,}",
            "pages of a claim": "{pages:,.0f}",
            "pages of a process's first claim": "{first:,}",
        },
    )


def growth_sections(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> Sections:
    """Return the sections.

    Args:
        report: Figures of the part `growth` by store.
        capacity: Figures of the part `capacity`.
    """
    figures = [figure for store in GROWTH_STORES for figure in report.get(store, {}).get("figures", ())]
    of_equal = ratios_of_equal_work(figures)
    sections: Sections = {("growth_memory", "aim"): [_growth_aim(of_equal)]} if of_equal else {}
    for situation in SITUATIONS:
        found = [figure for figure in figures if figure["situation"] == situation]
        if found:
            sections["growth_dynamodb", situation.replace(",", "")] = [_growth_table(found)]
    bound = f"""On DynamoDB a claim reads up to {MAX_PAGES} pages, the largest with {LARGER_PAGES_KEYS[-1]:,}
        keys: at most {capacity["behind_stale"][-1]["read_units"]:g} read units ([Costs](../costs.md)). Beside
        30,000 stale tasks, the first claims of a process skip up to {most_passed_over():,} each and come up
        short; later claims continue there and soon cost the same as beside 1,000 tasks."""
    sections["capacity", "bound"] = [Prose(bound)]
    if shards := report.get("dynamodb", {}).get("shards"):
        sections["growth_dynamodb", "shards"] = [_shards(shards)]
    return sections


def _growth_aim(of_equal: Sequence[float]) -> Prose:
    return Prose(
        f"""The aim is {GROWTH_AIM:g}, and {GROWTH_AIM_OF_GROUPS:g} for groups; bold ratios miss it. In memory
        and on SQL, claims of equal work gave ratios from {min(of_equal):.2f} to {max(of_equal):.2f}, which is
        the noise of the machine."""
    )


def ratios_of_equal_work(figures: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ratios, which are noise, of claims that did the same work as at the smallest size.

    On DynamoDB the counted claims are not the timed claims, so equal counts say nothing.
    """
    smallest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    same: list[float] = []
    timed = (each for each in figures if each["store"] != "dynamodb")
    for figure in sorted(timed, key=lambda each: each["size"]):
        key = (figure["store"], figure["situation"], figure["limit"])
        first = smallest.setdefault(key, figure)
        if first is not figure and (first["amounts"], first["short"]) == (figure["amounts"], figure["short"]):
            same.append(figure["ratio"])
    return same


def misses(figure: Mapping[str, Any]) -> bool:
    """Return whether a ratio, rounded as shown, misses its aim."""
    aim = GROWTH_AIM_OF_GROUPS if figure["situation"] == GROUPS else GROWTH_AIM
    return round(float(figure["ratio"]), 2) > aim


def _growth_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    stores = [*GROWTH_STORES]
    ordered = sorted(figures, key=lambda each: (stores.index(each["store"]), each["limit"], each["size"]))
    return columns(
        ordered,
        {
            "store": lambda figure: GROWTH_STORES[figure["store"]],
            "cost of one claim": _amounts,
            "claim of": "{limit}",
            GROUPS if figures[0]["situation"] == GROUPS else "tasks": "{size:,}",
            "time / smallest size": _ratio,
            "short claims": _short,
        },
        texts=2,
    )


def _ratio(figure: Mapping[str, Any]) -> str:
    ratio = bold(f"{figure['ratio']:.2f}", when=misses(figure))
    quartiles = figure.get("ratio_quartiles")
    if not quartiles or quartiles[0] == quartiles[1]:  # the smallest size, compared with itself
        return ratio
    return f"{ratio} ({quartiles[0]:.2f} to {quartiles[1]:.2f})"


def _short(figure: Mapping[str, Any]) -> str:
    found = f", {figure['found']:.1f} tasks on average" if figure["short"] and "found" in figure else ""
    return f"{figure['short']:.0%}{found}"


def _amounts(figure: Mapping[str, Any]) -> str:
    names = {"steps": "instructions"} if figure["store"] == "memory" else {}
    return ", ".join(f"{names.get(name, name)} {amount:,g}" for name, amount in figure["amounts"].items())


def _shards(shards: Sequence[Mapping[str, Any]]) -> Table:
    return columns(
        shards,
        {
            "shards": "{shards}",
            "write units a second": lambda figure: f"{1000 * figure['shards']:,}",
            "claims that skip a newer task": "{share:.0%}",
            "positions, mean": "{mean_places:.1f}",
            "calls": "{amounts[calls]:g}",
            "read units": "{amounts[read units]:g}",
        },
    )
