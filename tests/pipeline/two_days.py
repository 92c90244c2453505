"""Two days of two queues, from which the answers of docs/questions.md follow event by event."""

from typing import Any

from tests.pipeline.recording import Recording

HOUR = 3600.0
YESTERDAY = 24 * HOUR
MAIL: dict[str, Any] = {"queue": "mail", "max_age": HOUR}
QUOTES: dict[str, Any] = {"queue": "quotes", "max_age": 60}


def done(tape: Recording, task: str, at: float, until: float, worker: str, status: str = "SUCCESS") -> None:
    """Claim a task and settle it."""
    tape.take(at, task, holder=f"{worker}:{task}")
    tape.settle(until, task, status)


def two_days() -> Recording:
    """Return the recording."""
    tape = Recording()
    tape.put(10 * HOUR, "mail-0", group="acme", **MAIL)
    done(tape, "mail-0", 10 * HOUR + 2, 10 * HOUR + 5, "w1")
    tape.put(11 * HOUR, "quote-0", **QUOTES)  # expires
    tape.put(11 * HOUR + 5, "quote-1", **QUOTES)
    done(tape, "quote-1", 11 * HOUR + 6, 11 * HOUR + 8, "w3")
    mail_of_yesterday(tape, YESTERDAY + 9 * HOUR)
    quotes_of_yesterday(tape, YESTERDAY + 14 * HOUR)
    # A worker that writes to the table without freshq.
    tape.put(YESTERDAY + 16 * HOUR, "mail-9", group="beta", **MAIL)
    done(tape, "mail-9", YESTERDAY + 16 * HOUR + 1, YESTERDAY + 16 * HOUR + 2, "w1")
    tape.change(YESTERDAY + 16 * HOUR + 3, "mail-9", "PENDING")
    tape.change(YESTERDAY + 16 * HOUR + 4, "mail-9", "SUCCESS")
    return tape


def mail_of_yesterday(tape: Recording, nine: float) -> None:
    """Four tasks of acme, of which three succeed, and three of beta, of which one does, after 40 seconds."""
    for second in range(7):
        tape.put(nine + second, f"mail-{second + 1}", group="beta" if second in (3, 4, 5) else "acme", **MAIL)
    tape.change(nine + 6.5, "mail-6", "SHED", shedReason={"S": "overflow"})
    done(tape, "mail-1", nine + 7, nine + 9, "w1")
    done(tape, "mail-2", nine + 9, nine + 12, "w1")
    done(tape, "mail-3", nine + 12, nine + 13, "w1", "FAILURE")
    # w2 dies with this task, which returns to its line when the lease has expired.
    tape.take(nine + 8, "mail-7", holder="w2:7", lease=30)
    done(tape, "mail-5", nine + 14, nine + 15, "w1", "PENDING")
    done(tape, "mail-5", nine + 20, nine + 21, "w1", "FAILURE")
    tape.settle(nine + 39, "mail-7", "PENDING")
    done(tape, "mail-7", nine + 40, nine + 42, "w1")
    done(tape, "mail-4", nine + 43, nine + 50, "w1")


def quotes_of_yesterday(tape: Recording, two: float) -> None:
    """Two succeed, three expire a minute later, one is shed by CoDel, and one succeeds after its deadline."""
    for second in range(5):
        tape.put(two + second, f"quote-{second + 2}", **QUOTES)
    done(tape, "quote-6", two + 5, two + 6, "w3")
    done(tape, "quote-5", two + 6, two + 7, "w3")
    tape.put(two + 10, "quote-7", **QUOTES)
    tape.change(two + 20, "quote-7", "SHED", shedReason={"S": "codel"})
    tape.put(two + HOUR, "quote-8", **QUOTES)
    done(tape, "quote-8", two + HOUR + 50, two + HOUR + 65, "w3")
