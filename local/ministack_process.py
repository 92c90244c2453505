"""The emulator's process, which `Emulator` starts: `python ministack_process.py SOCKET`.

It differs from ministack's own command in two ways. It serves a socket that its parent has bound, so that no
other process can take the port in between. And it kills itself and every function process when its standard
input closes, so that nothing outlives the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app  # type: ignore[import-untyped]


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _main(descriptor: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.backlog = 1024
    config.keep_alive_timeout = 75
    config.loglevel = "WARNING"
    asyncio.run(serve(app, config))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
