"""The dashboard of `make demo`."""

import sys

import httpx
import pytest
from local.demo import dashboard_beside

from freshq import Queue
from tests.support.patience import PATIENCE_SECONDS


def test_it_is_served_as_long_as_the_load() -> None:
    with dashboard_beside(Queue.memory()) as address:
        assert address is not None
        root = address.partition("#")[0]
        assert root.startswith("http://127.0.0.1:")
        assert httpx.get(root, timeout=PATIENCE_SECONDS).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(root, timeout=PATIENCE_SECONDS)


def test_the_demo_goes_on_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("freshq.cli.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [name for name in sys.modules if name.startswith("starlette.")]:
        monkeypatch.delitem(sys.modules, name)
    with dashboard_beside(Queue.memory()) as address:
        assert address is None
