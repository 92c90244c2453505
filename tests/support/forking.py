"""Fork this process, and see how the children end."""

import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Final

from freshq.errors import FreshqError
from tests.support.patience import PATIENCE_SECONDS

REFUSED: Final = 3


def forked(work: Callable[[], object]) -> int:
    """Run work in a forked child, and return the child. It ends with 0, `REFUSED`, or 1 for other errors."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except FreshqError:
        code = REFUSED
    except BaseException:  # noqa: BLE001 - shown, and in the code
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(child: int, seconds: float = PATIENCE_SECONDS) -> int | None:
    """Return how a forked child ended; None, and end it, if it has not ended in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
