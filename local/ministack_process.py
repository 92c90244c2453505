"""The emulator's process, which `Emulator` starts: `python ministack_process.py SOCKET`.

It differs from ministack's own command in five ways. It serves a socket that its parent has bound, so that
no other process can take the port in between. It kills itself and every function process when its standard
input closes, so that nothing outlives the parent. And it waits for the batching windows of streams, as Lambda
does and ministack does not, so that functions are invoked as often as in an account. In the filters of
streams, what is not there does not exist, however many levels above it are missing; ministack wants those.
And it unpacks a layer once, not for each process of a function, which would double the work of a start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
import zipfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class BatchingWindows:
    """Holds a stream's records back until a batch is full, or its first record has waited for the window.

    The emulator's thread goes through the mappings, and reads the stream of each in turn. What others read
    meanwhile, such as the records that a client asks for, is not held back.
    """

    def __init__(self, mappings: Any, streams: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """Replace two functions of the emulator.

        Args:
            mappings: The emulator's module of event source mappings.
            streams: Its module of streams.
            clock: Returns the time in seconds.
        """
        self._wake: threading.Event = mappings._esm_wake
        self._each_mapping = mappings._iter_all_esms
        self._records_since = streams.stream_records_since
        self._clock = clock
        # In each thread the mapping that it reads for, in `mapping`.
        self._reading = threading.local()
        # Where the next batch begins, and when its first record was seen, by mapping.
        self._first_seen: dict[str, tuple[int, float]] = {}
        mappings._iter_all_esms = self._iterate
        streams.stream_records_since = self._full_or_due

    def _iterate(self) -> Iterator[tuple[Any, ...]]:
        for found in self._each_mapping():
            self._reading.mapping = found[-1]
            yield found
        self._reading.mapping = {}

    def _full_or_due(self, table: str, position: int, limit: int, **place: Any) -> list[Any]:
        records: list[Any] = self._records_since(table, position, limit, **place)
        reader: dict[str, Any] = getattr(self._reading, "mapping", {})
        window_seconds = float(reader.get("MaximumBatchingWindowInSeconds") or 0)
        if not records or len(records) >= limit or not window_seconds:
            return records
        mapping, now = str(reader["UUID"]), self._clock()
        begins, seen = self._first_seen.get(mapping, (-1, now))
        if begins != position:
            self._first_seen[mapping], seen = (position, now), now
            timer = threading.Timer(window_seconds, self._wake.set)
            timer.daemon = True
            timer.start()
        return records if now - seen >= window_seconds else []


def with_parents(record: Mapping[str, Any], pattern: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of a stream with each level that a filter names, empty where it is missing.

    Lambda compares paths to values, so `{"exists": false}` holds also where a part of the path is missing.
    """
    levels = {name: inner for name, inner in pattern.items() if isinstance(inner, dict)}
    parents = {name: with_parents(record.get(name) or {}, inner) for name, inner in levels.items()}
    return {**record, **parents}


def mend_filters(mappings: Any) -> None:
    """Have the emulator's filters match records in which levels are missing.

    Args:
        mappings: The emulator's module of event source mappings.
    """
    matches = mappings._match_esm_filter

    def matches_with_parents(record: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
        return bool(matches(with_parents(record, pattern), pattern))

    mappings._match_esm_filter = matches_with_parents


def unpack_once(runtime: Any, folder: Path) -> None:
    """Have the emulator unpack a package once for all processes of functions, which only read it.

    Args:
        runtime: The emulator's module that starts the processes.
        folder: Where packages are kept; a process has links to them.
    """
    one_at_a_time = threading.Lock()

    class Package(zipfile.ZipFile):
        def extractall(self, path: Any = None, *_options: Any) -> None:
            content = sorted((part.filename, part.CRC) for part in self.infolist())
            kept = folder / sha256(repr(content).encode()).hexdigest()
            with one_at_a_time:
                if not kept.exists():
                    super().extractall(kept.with_suffix(".part"))
                    kept.with_suffix(".part").rename(kept)
            for part in kept.iterdir():
                (Path(path) / part.name).symlink_to(part)

    runtime.zipfile = SimpleNamespace(**{**vars(zipfile), "ZipFile": Package})


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _main(descriptor: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config
    from ministack.app import app  # type: ignore[import-untyped]
    from ministack.core import lambda_runtime  # type: ignore[import-untyped]
    from ministack.services import dynamodb, lambda_svc  # type: ignore[import-untyped]

    threading.Thread(target=_end_with_parent, daemon=True).start()
    BatchingWindows(lambda_svc, dynamodb)
    mend_filters(lambda_svc)
    unpack_once(lambda_runtime, Path(tempfile.mkdtemp()))
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.backlog = 1024
    config.keep_alive_timeout = 75
    config.loglevel = "WARNING"
    asyncio.run(serve(app, config))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
