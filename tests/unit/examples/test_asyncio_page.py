"""The page on asyncio: its programs run."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import AsyncQueue, TaskStatus
from tests.support.functions import PROJECT

PROGRAMS = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "asyncio.md").read_text("utf-8"), re.DOTALL)


def program(part: str) -> str:
    """Return the only program of the page with some text in it."""
    (found,) = [text for text in PROGRAMS if part in text]
    return str(found)


def test_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(program("quote-ABC"), "first.py", "exec"), {})
    assert capsys.readouterr().out == "SUCCESS {'price': 42}\n"


def test_the_transaction(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    page: dict[str, Any] = {}
    exec(compile(program("transaction"), "ship.py", "exec"), page)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders AS SELECT 7 AS id, 'new' AS status"))

    async def ship() -> None:
        async with AsyncQueue.sql(url) as queue:
            await queue.create_table()
            await queue.put(7, task_id="a")
            await page["ship"](queue)
            task = await queue.wait("a", timeout_seconds=0)
            assert (task.status, task.result) == (TaskStatus.SUCCESS, "shipped")

    asyncio.run(ship())
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT status FROM orders")).scalars().all() == ["shipped"]
    engine.dispose()
