"""What `make test` leaves out exists."""

from pathlib import Path

import pytest

from tests.conftest import MISSING_TESTS, ONLY_WITH_ALL, file_of


def test_each_slow_test_exists(pytestconfig: pytest.Config) -> None:
    """Files always; single tests when all tests were collected, by `make test-all`."""
    files = {file_of(entry) for entry in ONLY_WITH_ALL}
    assert files
    assert [file for file in files if not Path(pytestconfig.rootpath, file).exists()] == []
    assert pytestconfig.stash.get(MISSING_TESTS, []) == []
