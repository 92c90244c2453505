"""Run mutmut in the current folder on a sample of the mutants, and write the outcome of each.

    python mutmut_process.py SAMPLE CHILDREN RESULTS

SAMPLE is the number of mutants of each room; 0 means all. `local/mutation.py` prepares the folder. If no test
calls a function, no mutant is tried, and the names of such functions are written. In `stores`, such functions
are left out: only database servers need them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import mutmut as stats
import pytest
from _pytest.config import _prepareconfig
from hypothesis import HealthCheck, settings
from mutmut import __main__ as mutmut
from mutmut.utils.file_utils import change_cwd

if TYPE_CHECKING:
    from collections.abc import Iterable

SEED: Final = 14
PARTLY_ON_SERVERS: Final = "stores"
_collect = mutmut.collect_source_file_mutation_data


def sampled(mutants: list[Any], size: int) -> list[Any]:
    """Return a random sample of the mutants of each room, the same in every run."""
    by_room: dict[str, list[Any]] = defaultdict(list)
    for mutant in sorted(mutants, key=lambda mutant: str(mutant[1])):
        by_room[room_of(mutant[1])].append(mutant)
    if not size:
        return mutants
    rng = Random(SEED)  # noqa: S311 - a sample
    return [mutant for room in by_room.values() for mutant in rng.sample(room, min(size, len(room)))]


def room_of(mutant: str) -> str:
    """Return the room of a mutant, whose name starts with its module."""
    return mutant.split(".")[1]


class Uncalled(Exception):
    """No test calls some of the functions.

    Attributes:
        functions: These functions, as mutmut names them.
    """

    def __init__(self, functions: list[str]) -> None:
        super().__init__(", ".join(functions))
        self.functions = functions


def forget_results() -> None:
    """Clear the caches of functions and statements: they were computed without the mutant."""
    for name, module in list(sys.modules.items()):
        if name.startswith("freshq."):
            for value in list(vars(module).values()):
                if not isinstance(value, type) and callable(clear := getattr(value, "cache_clear", None)):
                    clear()
    if (statements := sys.modules.get("freshq.stores.sql.statements")) is not None:
        statements._SHARED.clear()  # noqa: SLF001 - has no other use


class Forgetful:
    """A pytest plugin that clears caches before each test, so that every function is called by a test."""

    @staticmethod
    def pytest_runtest_setup() -> None:
        """Forget the results of earlier tests."""
        forget_results()


class CollectedRunner(mutmut.PytestRunner):
    """Collects the tests once for all mutants, because collecting takes longer than most tests.

    mutmut forks a process for each mutant, in which the session runs the tests of that mutant.
    """

    def __init__(self) -> None:
        """Collect nothing yet: mutmut first runs all tests without a mutant."""
        super().__init__()
        self._session: pytest.Session | None = None
        self._items: dict[str, pytest.Item] = {}

    def execute_pytest(self, params: list[str], **options: Any) -> int:
        """Run tests in this process; return the exit code."""
        plugins = [*options.pop("plugins", ()), Forgetful()]
        return int(super().execute_pytest(params, plugins=plugins, **options))

    def run_forced_fail(self) -> int:
        """Check that a failure is noticed, then collect the tests."""
        status = int(super().run_forced_fail())
        with change_cwd("mutants"):
            self._collect()
        return status

    def _collect(self) -> None:
        os.environ["MUTANT_UNDER_TEST"] = ""
        selection = self._pytest_add_cli_args_test_selection
        config = _prepareconfig(["--rootdir=.", "-x", "-q", "-s", *selection, *self._pytest_add_cli_args])
        config._do_configure()  # noqa: SLF001 - pytest.main() also does it, but forgets the collected tests
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        session.perform_collect()
        self._session, self._items = session, {item.nodeid: item for item in session.items}

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Run tests until one fails; return an exit code."""
        session = self._session
        if mutant_name is None or session is None:
            return int(super().run_tests(mutant_name=mutant_name, tests=tests))
        forget_results()
        session.items = [self._items[test] for test in tests]
        with change_cwd("mutants"):
            try:
                session.config.hook.pytest_runtestloop(session=session)
            except session.Failed:
                return int(pytest.ExitCode.TESTS_FAILED)
        return int(pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK)


def called(mutants: list[Any]) -> list[Any]:
    """Return the mutants of functions that a test calls.

    Raises:
        Uncalled: If no test calls another function, unless only servers need it.
    """
    functions = {mutant[1]: mutmut.mangled_name_from_mutant_name(mutant[1]) for mutant in mutants}
    missed = {name for name in functions.values() if not stats.tests_by_mangled_function_name.get(name)}
    if unexpected := sorted(name for name in missed if room_of(name) != PARTLY_ON_SERVERS):
        raise Uncalled(unexpected)
    return [mutant for mutant in mutants if functions[mutant[1]] not in missed]


def main(size: int, children: int, results: Path) -> None:
    """Run mutmut; write the number of mutants by room, and the outcome of each tried mutant."""
    # mutmut 3.7 does not find a test's id in pytest 9.
    pytest.Item._nodeid = property(lambda item: item.nodeid)  # type: ignore[attr-defined]  # noqa: SLF001 - mutmut reads it
    # The tests run several times in one process and may fail only because of the mutant.
    settings.register_profile(
        "mutation", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutation")
    if not sys.stdout.isatty():
        mutmut.print_status = lambda *_arguments, **_options: None
    chosen: list[Any] = []
    counts: Counter[str] = Counter()

    def collect(*, mutant_names: Any) -> Any:
        found, files = _collect(mutant_names=mutant_names)
        mutants = called(found)
        chosen[:] = sampled(mutants, size)
        counts.update(room_of(name) for _file, name, _status in mutants)
        return chosen, files

    mutmut.collect_source_file_mutation_data = collect
    setattr(mutmut, "PytestRunner", CollectedRunner)  # noqa: B010 - mypy allows this
    try:
        mutmut._run((), children)  # noqa: SLF001 - its command has no way to sample
    except Uncalled as error:
        found: dict[str, Any] = {"uncalled": error.functions}
    else:
        found = {"seed": SEED, "counts": counts, "mutants": [outcome(*mutant) for mutant in chosen]}
    results.write_text(json.dumps(found, indent=1), "utf-8")


def outcome(file: Any, name: str, _before: object) -> dict[str, str]:
    """Return the outcome of a mutant."""
    status = mutmut.status_by_exit_code[file.exit_code_by_key[name]]
    change = mutmut.get_diff_for_mutant(name, path=file.path) if status != "killed" else ""
    return {"room": room_of(name), "name": name, "status": status, "change": change}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
