"""Answers requests for prices, and works its own queue: uvicorn app:app. SIGTERM drains it.

Once, before the first start: freshq table create sqlite:///tasks.db
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from freshq import AsyncQueue, Handlers, Task, Worker
from freshq.errors import WaitTimeout

PRICES = {"ABC": 42, "DEF": 7}

queue = AsyncQueue.sql("sqlite:///tasks.db", max_age_seconds=30)
handlers = Handlers()


@dataclass
class Quote:
    """What a request asks for."""

    symbol: str


@handlers.on("quote", max_attempts=3, max_run_seconds=10)
async def quote(task: Task, payload: Quote) -> dict[str, object]:
    """Ask the exchange, which takes its time."""
    await asyncio.sleep(0.2)
    return {"symbol": payload.symbol, "price": PRICES.get(payload.symbol), "attempts": task.attempts}


async def ask(request: Request) -> JSONResponse:
    """Put a task, and wait a little for its result."""
    receipt = await queue.put(Quote(request.path_params["symbol"]), kind="quote")
    try:
        task = await queue.wait(receipt.task_id, timeout_seconds=5)
    except WaitTimeout:
        return JSONResponse({"task_id": receipt.task_id}, status_code=202)
    return JSONResponse({"status": task.status, "result": task.result})


async def health(_request: Request) -> JSONResponse:
    """Say whether the worker works."""
    status = worker.status()
    return JSONResponse({"state": status.state, "running": status.running})


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Run the worker while the application runs."""
    async with queue, worker.serving(drain_seconds=20):  # fails if the tables are missing
        yield


worker = Worker(queue, handlers, concurrency=100)
app = Starlette(routes=[Route("/quotes/{symbol}", ask), Route("/health", health)], lifespan=lifespan)
