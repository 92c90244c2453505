"""freshq runs every cell of the part `harness`."""

from collections.abc import Iterator

import pytest
from benchmarks import harness
from benchmarks.harness import CELLS, ContenderServer
from benchmarks.harness_page import OWN, ROWS
from local.servers import Postgres, Unavailable, databases_are_required, packaged_postgres_programs

SHORT = {
    "WARM_SECONDS": 1.0,
    "STEADY_SECONDS": 1.0,
    "KILLED_SECONDS": 2.0,
    "CRASHES": 1,
    "END_SECONDS": 3.0,
    "BURST_SECONDS": 1.0,
    "DRAIN_SECONDS": 60.0,
    "RESCUED_SECONDS": 60.0,
}
TASKS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[ContenderServer]:
    """Return a server with no other queue."""
    try:
        programs = packaged_postgres_programs()
    except Unavailable as missing:
        assert not databases_are_required()
        pytest.skip(str(missing))
    with Postgres(programs=programs) as postgres:
        yield ContenderServer(postgres, "none", 3.0)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", CELLS)
def test_each_cell_has_its_figures(
    name: str, server: ContenderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in SHORT.items():
        monkeypatch.setattr(harness, constant, value)
    for peer in (OWN, harness.FUNCTIONS):
        monkeypatch.setitem(harness.TASKS, peer, (TASKS,) * len(harness.SLOTS))
    cell = CELLS[name]
    for peer in [each for each in cell.contenders if each.startswith(OWN)]:
        found = cell.measure(server, peer)
        assert {row.figure for row in ROWS if row.cell == name} <= found.keys()
        assert min(figure for figure in found.values() if figure is not None) >= 0
        assert None not in found.values()
        assert found.get("lost_or_stuck", 0) == 0


@pytest.mark.timeout(60)
def test_the_server_is_the_package_s(server: ContenderServer) -> None:
    (number,) = server.number("SHOW server_version_num")
    assert number >= 180_000


@pytest.mark.timeout(60)
def test_a_program_that_fails_says_why(server: ContenderServer) -> None:
    with (
        server.database() as where,
        pytest.raises(harness.ContenderFailed, match=r"fill freshq: (?s:.)*TableMissing"),
    ):
        server.ask("fill", OWN, where, 1)
