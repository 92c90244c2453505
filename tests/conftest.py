"""Fixtures that all tests share: a clock that stands still, and the stores."""

import gc
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import boto3
import pytest
from botocore.session import Session, get_session
from hypothesis import settings
from local.servers import create_without_stream
from moto import mock_aws
from types_boto3_dynamodb import DynamoDBClient
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from freshq import Queue
from freshq.stores.base import Store
from freshq.stores.dynamodb.store import DynamoDBStore
from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from tests.support.cached_constants import answer_boto_only, clean_names_once, read_models_once
from tests.support.dynamodb_double import DynamoDBDouble, Tables

# No test may reach an account, so these credentials belong to none.
REGION = "eu-west-1"
os.environ.update(
    AWS_ACCESS_KEY_ID="test",
    AWS_SECRET_ACCESS_KEY="test",
    AWS_DEFAULT_REGION=REGION,
    AWS_EC2_METADATA_DISABLED="true",
    POWERTOOLS_SERVICE_NAME="freshq",
    POWERTOOLS_METRICS_NAMESPACE="freshq",
    POWERTOOLS_TRACE_DISABLED="1",
)
os.environ.pop("AWS_PROFILE", None)
START = 1_700_000_000.0
DATABASES = ["sqlite", "postgres", "mariadb"]
# The double of DynamoDB on which `tests/support/interleaving.py` tries orders of calls.
DOUBLE: Final = "dynamodb_double"

pytest_plugins = [
    "tests.support.browser_fixtures",
    "tests.support.database_fixtures",
    "tests.support.leak_checks",
    "tests.support.shared_server",
]
read_models_once()
clean_names_once()
answer_boto_only()
# A busy machine may stall any example; Hypothesis would call that a failure.
if settings.get_current_profile_name() == "default":
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")

# Folders whose tests run one by one, each folder in one process, so that there is only one emulator and one
# Spark session at a time. They start first because they take longest.
ONE_AT_A_TIME: Final = ("e2e", "pipeline")
# The first process has the tests in real time, so the others run at a lower priority. The second has the
# longest chain, the pipeline's tests; if it shared a processor with the third, it would be the last to
# finish.
FIRST_PROCESS: Final = "gw0"
POLITENESS: Final = {FIRST_PROCESS: 0, "gw1": 5}
MOST_POLITE: Final = 10
# Folders and files that start first, in this order. Some have few tests, which are slow: at the end, one
# process would still run such a file while the others were idle.
LONGEST_FIRST: Final = (
    *ONE_AT_A_TIME,
    "tests/unit/simulate/test_simulate_long.py",
    "tests/unit/queue/test_interleaving.py",
    "tests/contract/test_stores_agree.py",
    "tests/unit/benchmarks/test_harness_cells.py",
    "tests/unit/worker/test_isolate_soak.py",
    "tests/unit/aws/test_pass_bound.py",
    "tests/unit/aws/test_runner_powertools.py",
    "tests/unit/matching/test_matching_model.py",
    "tests/unit/stores/test_conservation.py",
    "soak",
    "packaging",
    "docs",
    "runtime",
    "dashboard",
    "sql",
    "contract",
)


# `make test-all` (--all) runs every test on every store. `make test` leaves out slow tests, and slow files,
# which it does not import.
ONLY_WITH_ALL: Final = tuple(
    line
    for line in (Path(__file__).parent / "only_with_all.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
)
# The entries that name no test, if all tests were collected.
MISSING_TESTS: Final = pytest.StashKey[list[str]]()
# Of these folders, `make test` runs only these files. The demonstration deploys the application and runs the
# pipeline over what it archived; without an emulator, tests/unit/aws shows what every function does.
ESSENTIALS: Final = {
    "tests/e2e": ("demo",),
    "tests/pipeline": ("report", "gold", "publication", "one_run", "command", "links"),
}
# Of the parameters that this mark names (all, if it names none), it tries the first value: other values show
# the same mechanism at another width, in another process model, and so on.
MATRIX: Final = "matrix"
# It leaves out repetitions of a test on servers, except of the protocol on real servers. A test that needs
# one runs on one.
SERVERS: Final = ("dynamodb_local", "account", "postgres", "mariadb", DOUBLE)
PROTOCOL: Final = ("tests/contract/test_verbs.py", "tests/contract/test_settle_many.py")
# Other tests of the contract run in memory once, except the central rules, which run on SQLite as well.
CONTRACT: Final = "tests/contract/"
ON_SQLITE: Final = (*PROTOCOL, "tests/contract/test_rules.py")
# Files whose tests try more with --all, so that --rest cannot leave them out.
MORE_WITH_ALL: Final = (
    "tests/contract/test_stores_agree.py",
    "tests/unit/house/test_slow_tests.py",
    "tests/unit/queue/test_interleaving.py",
    "tests/unit/simulate/test_simulate_identity.py",
    "tests/unit/stores/test_guards.py",
)
# Hypothesis tries a hundred examples of most properties; `make test` fewer.
QUICK_EXAMPLES: Final = 20
# Time limit of a test with --all. Some compute for two minutes, and several times as long on a busy machine.
# `make test` has no such tests, so the shorter limit in pyproject.toml finds a test that hangs sooner.
LONG_TEST_SECONDS: Final = 1200


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.split("::", maxsplit=1)[0]


def group_of(nodeid: str) -> str | None:
    """Return the name of the group of tests that must run in one process, if this test is in one."""
    folder = nodeid.split("/")[1]
    return folder if folder in ONE_AT_A_TIME else None


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Distributes tests to processes by file, except groups that must run in one process."""

    def schedule(self) -> None:
        """Give the first group to the process with priority, whichever process was ready first."""
        in_order = sorted(self.assigned_work.items(), key=lambda entry: entry[0].gateway.id)
        self.assigned_work: dict[WorkerController, dict[str, dict[str, bool]]] = dict(in_order)
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or file_of(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests in real time the processors that they ask for, and collect no garbage of imports."""
    gc.disable()
    if is_quick_run(config) and settings.get_current_profile_name() == "patient":
        settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)
        settings.load_profile("quick")
    os.nice(POLITENESS.get(os.environ.get("PYTEST_XDIST_WORKER", FIRST_PROCESS), MOST_POLITE))


def pytest_collection_finish() -> None:
    """Start garbage collection of what tests create; imported objects stay to the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Let Python free everything at exit; otherwise modules in C++ report leaks.

    Last, because others collect what the tests left behind, and imported objects would take them a second.
    """
    gc.unfreeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Distribute tests in the order in which they were collected."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test-all` ask for the whole matrix, and `make mutation` for what needs no server."""
    parser.addoption("--all", action="store_true", help="run every test on every store")
    parser.addoption("--rest", action="store_true", help="with --all: leave out what `make test` runs")
    parser.addoption("--without-servers", action="store_true", help="run no test that needs a server")


def server_of(item: pytest.Item) -> str | None:
    """Return the first server that a test needs; None if it needs none."""
    callspec = getattr(item, "callspec", None)
    given = () if callspec is None else map(str, callspec.params.values())
    # Fixtures of servers are named like postgres_engine and postgres_server.
    fixtures = (name.partition("_")[0] for name in getattr(item, "fixturenames", ()))
    needs = {*getattr(item, "fixturenames", ()), *fixtures, *given}
    return next((server for server in SERVERS if server in needs), None)


def form_of(item: pytest.Item) -> str | None:
    """Return on what a test repeats itself: a server, or SQLite if its contract runs in memory only."""
    server, file = server_of(item), file_of(item.nodeid)
    if server is not None or not file.startswith(CONTRACT) or file in ON_SQLITE:
        return server
    callspec = getattr(item, "callspec", None)
    return "sqlite" if callspec is not None and "sqlite" in map(str, callspec.params.values()) else None


def is_quick_run(config: pytest.Config) -> bool:
    """Return whether this is `make test`: neither the whole matrix nor tests by name."""
    return not config.getoption("all") and not config.option.file_or_dir


def is_slow(file: str) -> bool:
    """Return whether `make test` leaves out a whole file."""
    path = Path(file)
    essentials = ESSENTIALS.get(path.parent.as_posix()) if path.name.startswith("test_") else None
    is_essential = essentials is None or path.stem.removeprefix("test_") in essentials
    return file.startswith(ONLY_WITH_ALL) or not is_essential


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out slow files, without importing them."""
    file = collection_path.relative_to(config.rootpath).as_posix()
    return True if is_quick_run(config) and is_slow(file) else None


def kept_case(item: pytest.Item) -> tuple[str, ...]:
    """Return what distinguishes a test in `make test` from others: not the parameters marked `matrix`."""
    mark = item.get_closest_marker(MATRIX)
    if mark is None:
        return (item.nodeid,)
    name, callspec = item.nodeid.split("[")[0], getattr(item, "callspec", None)
    values = {} if callspec is None or not mark.args else callspec.params
    return (name, *(f"{each}={value!r}" for each, value in values.items() if each not in mark.args))


def quick(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests without their repetitions on other stores, and one case of each `matrix`."""
    order = (None, "sqlite", *SERVERS)
    forms = {item: form_of(item) for item in items}
    least: dict[str, str | None] = {}
    for item, form in forms.items():
        name = item.nodeid.split("[")[0]
        least[name] = min(form, least.get(name, form), key=order.index)
    slow = {file: is_slow(file) for file in {file_of(item.nodeid) for item in items}}

    def is_quick(item: pytest.Item) -> bool:
        form, file = forms[item], file_of(item.nodeid)
        is_once = form == least[item.nodeid.split("[")[0]] or (file in PROTOCOL and form != DOUBLE)
        return is_once and not slow[file] and not item.nodeid.startswith(ONLY_WITH_ALL)

    kept = [item for item in items if is_quick(item)]
    first = {kept_case(item): item for item in reversed(kept)}
    return [item for item in kept if first[kept_case(item)] is item]


def missing_tests(nodeids: list[str]) -> list[str]:
    """Return the entries of `ONLY_WITH_ALL` that name no test, for example because it was renamed."""
    return [entry for entry in ONLY_WITH_ALL if not any(nodeid.startswith(entry) for nodeid in nodeids)]


def selected(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to run."""
    if config.getoption("without_servers"):
        return [item for item in items if server_of(item) is None]
    if is_quick_run(config):
        return quick(items)
    if config.getoption("rest"):
        run = set(quick(items))
        return [item for item in items if item not in run or file_of(item.nodeid) in MORE_WITH_ALL]
    return items


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and end with files of few tests, so that all processes end together.

    Without --all, and unless tests are named, only the quick ones are run.
    """
    if config.getoption("all") and not config.option.file_or_dir:
        config.stash[MISSING_TESTS] = missing_tests([item.nodeid for item in items])
    kept = selected(config, items)
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[*set(items).difference(kept)])
        items[:] = kept
    tests = Counter(file_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[int, int]:
        file, folder = file_of(item.nodeid), item.nodeid.split("/")[1]
        places = (place for place, name in enumerate(LONGEST_FIRST) if name in (file, folder))
        return next(places, len(LONGEST_FIRST)), -tests[file]

    items.sort(key=rank)
    if config.getoption("all"):
        allow_long(items)


def allow_long(items: list[pytest.Item]) -> None:
    """Give the tests without a time limit of their own a long one."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TEST_SECONDS))


@dataclass
class Clock:
    """A clock that moves only when a test advances it."""

    simulated: ClassVar[bool] = True
    now: float = START

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class StoreUnderTest:
    """One empty store, and queues on it that share its clock."""

    kind: str
    make_store: Callable[[int | None], Store]
    clock: Clock = field(default_factory=Clock)
    client: DynamoDBClient | None = None
    table: str | None = None

    @classmethod
    def in_memory(cls) -> Self:
        """Return an empty store in memory."""
        memory = MemoryStore()
        return cls("memory", lambda _shards: memory)

    def queue(self, *, shards: int | None = None, **options: Any) -> Queue:
        """Return a new queue on the store, as another process would have it."""
        options = {"clock": self.clock, "rng": random.Random(7), **options}
        return Queue(self.make_store(shards), **options)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def default_client() -> DynamoDBClient:
    """Return a client as an account would have it; to make one takes longer than most tests."""
    client: DynamoDBClient = boto3.client("dynamodb")
    return client


@pytest.fixture
def account_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[DynamoDBClient]:
    """Return the client of an account whose tables are doubles; its other services are moto's."""
    double: Any = DynamoDBDouble(Tables(time.time))
    # An address of its own, by which the process knows the time of the tables.
    double.meta.endpoint_url = f"https://{uuid.uuid4().hex}.{REGION}.amazonaws.com"
    double.meta.region_name = REGION
    # Few tests ask for them, and to make a session takes longer than most tests.
    double._get_credentials = lambda: get_session().get_credentials()
    create = Session.create_client

    def create_client(session: Session, service_name: str, *arguments: Any, **options: Any) -> Any:
        if service_name == "dynamodb":
            return double
        return create(session, service_name, *arguments, **options)

    monkeypatch.setattr(Session, "create_client", create_client)
    with mock_aws():
        yield double


def on_table(kind: str, client: DynamoDBClient, *, streamed: bool = False) -> StoreUnderTest:
    """Return a store on a new table."""
    table = f"tasks-{uuid.uuid4().hex}"
    store = StoreUnderTest(
        kind, lambda shards: DynamoDBStore(table, client, shards=shards), client=client, table=table
    )
    if streamed:
        store.make_store(None).create_table()
    else:
        create_without_stream(client, table)
    return store


@pytest.fixture(params=["memory", "dynamodb_local", *DATABASES, DOUBLE])
def store(request: pytest.FixtureRequest) -> StoreUnderTest:
    """Return an empty store of each kind."""
    if request.param == "memory":
        return StoreUnderTest.in_memory()
    if request.param == DOUBLE:
        client: Any = DynamoDBDouble(Tables(time.time))
        return on_table(DOUBLE, client)
    if request.param in DATABASES:
        engine = request.getfixturevalue(f"{request.param}_engine")
        return StoreUnderTest(request.param, lambda _shards: SqlStore(engine))
    return on_table(request.param, request.getfixturevalue("dynamodb_local"))


@pytest.fixture
def queue(store: StoreUnderTest) -> Queue:
    return store.queue()


@pytest.fixture
def table_store(dynamodb_local: DynamoDBClient) -> StoreUnderTest:
    """Return a store on DynamoDB Local."""
    return on_table("dynamodb_local", dynamodb_local)


@pytest.fixture
def streamed_store(dynamodb_local: DynamoDBClient) -> StoreUnderTest:
    """Return a store on DynamoDB Local that keeps its stream of changes."""
    return on_table("dynamodb_local", dynamodb_local, streamed=True)
