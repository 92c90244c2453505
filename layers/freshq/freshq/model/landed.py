"""The parts that landed events of all stores share."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

SCHEMA_VERSION: Final = 1
# Hexadecimal digits of a lease digest: enough to distinguish the leases of one task.
LEASE_DIGITS: Final = 16
# In a lease token, the text before this is the name of the worker.
WORKER_SEPARATOR: Final = ":"


def holder(lease_token: str | None) -> dict[str, str]:
    """Return the fields of a landed event that say who holds a task.

    They are a digest of the lease token, because who has the token can settle the task, and the name of the
    worker if the token has one.
    """
    if lease_token is None:
        return {}
    worker, separator, _ = lease_token.rpartition(WORKER_SEPARATOR)
    lease = {"lease": sha256(lease_token.encode(errors="replace")).hexdigest()[:LEASE_DIGITS]}
    return lease | ({"worker": worker} if separator and worker else {})
