"""What a command tells OpenLineage, so that a catalogue shows the tables with their inputs.

Off unless `--lineage` or the client's own settings name a receiver. A thread sends the events: a receiver
that fails or hangs costs a warning and at most `PATIENCE_SECONDS`. This module does not import the client.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from typing_extensions import override

from freshq.errors import MissingExtra, needs, quoted, without_secrets
from freshq_pipeline.errors import BadInput, check_installed, complain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq_pipeline.storage.folder import Folder


# The extra that installs the client, and the packages that it needs.
LINEAGE: Final = "lineage"
_PACKAGES: Final = ("openlineage", "openlineage.client")
_EVENTS: Final = "freshq_pipeline.report.lineage_events"
# How long the end of a command waits for a receiver, and the same after a signal. Loading the client, which a
# busy machine may delay, has a time of its own.
PATIENCE_SECONDS: Final = 10.0
HURRY_SECONDS: Final = 1.0
LOADING_SECONDS: Final = 60.0
# Number of events that may wait to be sent.
MOST_WAITING: Final = 100
# The client's settings that name a receiver, the places where it looks for its file, and what turns it off.
_SETTINGS: Final = re.compile(r"OPENLINEAGE_(URL|CONFIG|_TRANSPORT(__.+)?)")
_FILES: Final = ("openlineage.yml", "~/.openlineage/openlineage.yml")
_OFF: Final = "OPENLINEAGE_DISABLED"


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a command, to be sent as an event.

    Attributes:
        kind: START, RUNNING, COMPLETE, FAIL or ABORT.
        at: Time, in ISO 8601.
        command: Name of the command.
        run_id: Id of this run of the command.
        events: The folder with the recorded changes.
        out: The output folder.
        summary: Summary of the published run; None: nothing is published yet.
        error: Why the command failed; None: it did not.
    """

    kind: str
    at: str
    command: str
    run_id: str
    events: Folder
    out: Folder
    summary: Mapping[str, Any] | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Lineage:
    """The events of a command.

    Attributes:
        command: Name of the command.
        events: The folder with the recorded changes.
        out: The output folder.
        target: Address or file that receives the events; None: the client's own settings name it.
    """

    command: str
    events: Folder
    out: Folder
    target: str | None
    _run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    _sender: _Sender | None = None

    def start(self) -> None:
        """Send that the command starts, unless that was sent."""
        if self._sender is None:
            self._sender = _Sender(self.target)
            self._sender.start()
            self._put("START")

    def batch(self, summary: Mapping[str, Any]) -> None:
        """Send that a batch of a stream was published, given its summary."""
        self._put("RUNNING", summary)

    def end(self, summary: Mapping[str, Any] | None, error: BaseException | None = None) -> None:
        """Send that the command ends, unless that was sent; wait until all events are sent, but not long.

        Args:
            summary: Summary of the published run; None: nothing was published.
            error: Why it failed; None: it did not.
        """
        if self._sender is None or self._sender.has_ended:
            return
        by_signal = error is not None and not isinstance(error, Exception)
        self._put("COMPLETE" if error is None else "ABORT" if by_signal else "FAIL", summary, error)
        if by_signal:
            self._sender.finish(HURRY_SECONDS, HURRY_SECONDS)
        else:
            self._sender.finish(LOADING_SECONDS, PATIENCE_SECONDS)

    def _put(
        self, kind: str, summary: Mapping[str, Any] | None = None, error: BaseException | None = None
    ) -> None:
        if self._sender is not None:
            at = datetime.now(UTC).isoformat()
            of_run = self.command, self._run_id, self.events, self.out
            self._sender.put(Moment(kind, at, *of_run, summary, error))


def lineage_of(command: str, events: Folder, out: Folder, target: str | None) -> Lineage | None:
    """Return the events of a command; None if nobody asked for them.

    Args:
        command: Name of the command.
        events: The folder with the recorded changes.
        out: The output folder.
        target: Address or file that receives the events; None: the client's own settings may name it.

    Raises:
        BadInput: If the target is neither an address of HTTP nor a file.
        MissingExtra: If there is a target, but no client is installed.
    """
    setting = setting_of_client()
    if target is not None:
        _check(target, events)
    if (target is None and setting is None) or os.environ.get(_OFF, "").strip().lower() == "true":
        return None
    try:
        with needs(LINEAGE):
            check_installed(*_PACKAGES)
    except MissingExtra as error:
        if target is not None:
            raise
        complain(f"lineage: no events are sent, although {setting} names a receiver: {error}")
        return None
    return Lineage(command, events, out, target)


def setting_of_client() -> str | None:
    """Return a setting or a file of the client that names a receiver; None if there is none."""
    names = sorted(name for name, value in os.environ.items() if value and _SETTINGS.fullmatch(name))
    # Without a home, expanduser() of a Path would raise an error.
    files = (file for file in _FILES if os.path.isfile(os.path.expanduser(file)))  # noqa: PTH111, PTH113
    return next(iter(names), None) or next(files, None)


def _check(target: str, events: Folder) -> None:
    scheme, separator, _ = target.partition("://")
    if not target or (separator and (scheme not in ("http", "https") or not _host(target))):
        msg = f"lineage: must be http://HOST.., https://HOST.. or a file, got {quoted(target)}"
        raise BadInput(msg)
    if not separator:
        _check_file(Path(target), events.on_disk(""))


def _check_file(file: Path, events: Path | None) -> None:
    if file.is_dir() or not file.absolute().parent.is_dir():
        msg = f"lineage: must be a file in an existing folder, got {quoted(str(file))}"
        raise BadInput(msg)
    if events is not None and file.resolve().is_relative_to(events.resolve()):
        msg = f"lineage: {file} is in the folder of the events, and would be read as one; name another place"
        raise BadInput(msg)


def _host(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        found = parts.hostname if parts.port != 0 else None
    except ValueError:  # a wrong port
        return None
    return found


class _Sender(Thread):
    """Sends events in order. It does not keep the process, which may end while a receiver hangs."""

    def __init__(self, target: str | None) -> None:
        super().__init__(name="lineage", daemon=True)
        self._target = target
        self._waiting: Queue[Moment | None] = Queue(MOST_WAITING)
        self._is_loaded = Event()
        self._has_warned = False
        self.has_ended = False

    def put(self, moment: Moment | None) -> None:
        """Add an event; None: there are no more."""
        try:
            self._waiting.put_nowait(moment)
        except Full:
            self._warn(f"{MOST_WAITING} events wait to be sent")

    def finish(self, loading_seconds: float, patience_seconds: float) -> None:
        """Wait until the client is loaded and all events are sent, but not longer than given."""
        self.has_ended = True
        self.put(None)
        self._is_loaded.wait(loading_seconds)
        self.join(patience_seconds)
        if self.is_alive():
            self._warn(f"the receiver took longer than {patience_seconds:g} s")

    @override
    def run(self) -> None:
        # Python prints warnings of the client, some with a traceback, unless there is a handler.
        for name in (_PACKAGES[0], "urllib3"):
            logging.getLogger(name).addHandler(logging.NullHandler())
        try:
            events: Any = import_module(_EVENTS)
            client = events.open_client(self._target)
        except Exception as error:  # noqa: BLE001 - no error of a catalogue may fail a run
            self._warn(f"{type(error).__name__}: {error}")
            return
        finally:
            self._is_loaded.set()
        while (moment := self._waiting.get()) is not None:
            try:
                client.emit(events.event_of(moment))
            except Exception as error:  # noqa: BLE001 - as above
                self._warn(events.without_address(error))
        client.close(PATIENCE_SECONDS)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            shown = without_secrets(reason)
            complain(f"lineage: not all events were sent: {shown}; the tables do not depend on them")
