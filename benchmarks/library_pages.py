"""Sections of docs/compare.md, overload.md and value.md, and of contributors' pages about the library.

The templates have the text; this module computes their figures and has names and aims for other modules.
"""

from __future__ import annotations

from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import harness_page
from benchmarks import overload_setting as setting
from benchmarks.costs_page import (
    RATES_PER_SECOND,
    RUN_SECONDS,
    SLOTS,
    constants,
    most_passed_over,
    needs,
    rough,
)
from benchmarks.fair import DEADLINE
from benchmarks.figures import figures_of, read
from benchmarks.render import Sections, Table, across, bold, sections, spread
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

IMPORT, WITH_CLIENTS = 0, 1
TRACED: Final = "now"
# Packages with a smaller share of the imports are summed.
SHOWN_SHARE: Final = 0.04
# The loads of the part `value-peers`, as its results name them.
VALUE_LOADS: Final = ("1", "1.5", "3", "10")
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
    return sections("compare", read=read, rates=rates)


def cold_start_page() -> Sections:
    """Return the sections of docs/contributing/cold-starts.md."""
    result = read("coldstart")
    shares = result["figures"]["shares_of_imports"].items()
    shown = {package: share for package, share in shares if share >= SHOWN_SHARE}
    return sections(
        "cold-starts", found=result["figures"], machine=result["machine"], ratio=start_ratio, shares=shown
    )


def start_ratio(function: Mapping[str, Any], variant: str, part: int) -> float:
    """Return a function's processor time as a multiple of the time without bytecode."""
    return float(function[variant][part] / function["before"][part])


def overload_page() -> Sections:
    """Return the sections of docs/overload.md."""
    result = read("overload_peers")
    found = result["figures"]
    peers = {name: number for name, number in found["versions"].items() if number and name != "freshq"}
    return sections(
        "overload", found=found, machine=result["machine"], peers=peers, possible_ratio=possible_ratio
    )


def value_page() -> Sections:
    """Return the sections of docs/value.md."""
    result = read("value_peers")
    found = result["figures"]
    peers = {name: number for name, number in found["versions"].items() if number and name != "freshq"}
    return sections("value", found=found, machine=result["machine"], peers=peers, loads=VALUE_LOADS)


def possible_ratio(runs: Sequence[Mapping[str, Any]], load: float) -> float:
    """Return the share of the work done in time that is possible at a load, as the median of the runs."""
    in_time: float = median(run["in_time"] for run in runs)
    return in_time * max(1.0, load)


def measurements_page() -> Sections:
    """Return the sections of docs/contributing/measurements.md."""
    known = constants()
    of_rates = {
        "known": known,
        "needs": [needs(rate, known) for rate in RATES_PER_SECOND],
        "rough": rough,
        "RUN_SECONDS": RUN_SECONDS,
        "SLOTS": SLOTS,
    }
    return sections(
        "measurements", read=read, figures=figures_of, setting=setting, recovery=recovery, WAYS=WAYS,
        passed_over_runs=passed_over_runs, chains=_chains(), DEADLINE=DEADLINE, DURABLE=DURABLE,
        harness_page=harness_page, **of_rates,
    )  # fmt: skip


def passed_over_runs() -> dict[int, list[dict[str, Any]]]:
    """Return the runs of the part `passed-over` by number of claimers."""
    found: dict[int, list[dict[str, Any]]] = {}
    for run in figures_of("passed_over")["runs"]:
        found.setdefault(run["claimers"], []).append(run)
    return found


def _chains() -> list[Mapping[str, Any]]:
    """Return the figures of chains, those of the simulator first.

    The short load of a worker has a few long chains more or less, so its work for chains is counted.
    """
    found = figures_of("chains")["chains"]
    of_workers = [row | {"done": row["busy"] * row["useful"] / 2} for row in found if "busy" in row]
    return [*(row for row in found if "busy" not in row), *of_workers]


def recovery(row: Mapping[str, Any]) -> str:
    """Return the time that an order needed to recover."""
    seconds = row["recovery_seconds"]
    return f"not within {setting.FOLLOWED_SECONDS:.0f} s" if seconds is None else f"{seconds:.0f} s"


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
# Largest price of a run in a process of its own.
ISOLATE_AIM_US: Final = 1000
# Largest multiples of the floor.
FLOOR_AIMS: Final = dict(zip(VERBS, (2.0, 2.8, 2.0, 2.5, 2.0, 2.5), strict=True))


def throughput_page() -> Sections:
    """Return the sections of docs/contributing/throughput.md."""
    sqlite = figures_of("worker")["sqlite"]

    def processor_us(slots: str, contender: str) -> str:
        return _median(sqlite[slots].get(contender), "processor_us_per_task")

    return sections(
        "throughput", read=read, FILES=FILES, STORES=STORES, AIMS=AIMS, AIM_FAR=AIM_FAR, HAND=HAND,
        WORKER=WORKER, by_contender=_by_contender, slots=_slots, tasks_per_second=_rates, counted=_counted,
        ratio_cell=ratio_cell, processor_us=processor_us,
    )  # fmt: skip


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


def _counted(contenders: Mapping[str, Any], slots: Iterable[str]) -> Iterator[list[str]]:
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


def floor_page() -> Sections:
    """Return the sections of docs/contributing/floor.md."""
    verbs, runs = read("floor"), read("isolate")
    of_verbs = sections("floor", found=verbs["figures"], machine=verbs["machine"], aims=FLOOR_AIMS)
    of_runs = sections("isolate", found=runs["figures"], machine=runs["machine"], aim_us=ISOLATE_AIM_US)
    return of_verbs | of_runs


GROWTH_STORES: Final = {
    "memory": "memory",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "dynamodb": "DynamoDB Local",
}
GROWTH_AIM: Final = 1.2
GROWTH_AIM_OF_GROUPS: Final = 2.0


def growth_page() -> Sections:
    """Return the sections of docs/contributing/growth.md."""
    report = {store: figures_of(f"growth_{store}") for store in GROWTH_STORES}
    return growth_sections(report, figures_of("capacity"), figures_of("horizon"))


def growth_sections(
    report: Mapping[str, Any], capacity: Mapping[str, Any], horizon: Sequence[Mapping[str, Any]] = ()
) -> Sections:
    """Return the sections.

    Args:
        report: Figures of the part `growth` by store.
        capacity: Figures of the part `capacity`.
        horizon: Figures of the part `horizon`.
    """
    figures = [
        figure
        for store in GROWTH_STORES
        for figure in sorted(
            report.get(store, {}).get("figures", ()), key=lambda each: (each["limit"], each["size"])
        )
    ]
    return sections(
        "growth", figures=figures, of_equal=ratios_of_equal_work(figures), misses=misses, capacity=capacity,
        shards=report.get("dynamodb", {}).get("shards"), horizon=horizon, STORES=GROWTH_STORES,
        AIM=GROWTH_AIM, AIM_OF_GROUPS=GROWTH_AIM_OF_GROUPS, most_passed_over=most_passed_over,
        MAX_PAGES=MAX_PAGES, LARGER_PAGES_KEYS=LARGER_PAGES_KEYS,
    )  # fmt: skip


def ratios_of_equal_work(figures: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ratios of claims that did the same work as at the smallest size: they differ by noise only.

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
    aim = GROWTH_AIM_OF_GROUPS if figure["situation"] == "groups" else GROWTH_AIM
    return round(float(figure["ratio"]), 2) > aim
