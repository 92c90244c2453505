"""What `benchmarks.overload` simulates and measures: the same downstream, deadline and loads."""

from __future__ import annotations

from typing import Final

from freshq import Order

# The downstream: so many tasks at a time, each of so many seconds.
SERVERS: Final = 4
TASK_SECONDS: Final = 1.0
DEADLINE_SECONDS: Final = 5.0
# A burst on a load that can be served.
BURST_LOAD: Final = 0.8
BURST_FACTOR: Final = 10.0
BURST_SECONDS: Final = 20.0
# Of the tenant beside a flood.
QUIET_LOAD: Final = 0.2
# The orders that are both simulated and measured, as the figures name them.
ORDERS: Final = {"LIFO": Order.LIFO, "adaptive": Order.ADAPTIVE, "FIFO": Order.FIFO}
# The tasks of the application take longer, with a deadline as much longer, so that what the emulator needs
# between two tasks of a slot counts less. Each load lasts so many seconds: longer up to the capacity, where
# fewer tasks arrive. The first seconds, in which a backlog grows, do not count.
MEASURED_SECONDS: Final = {0.5: 150.0, 1.0: 150.0, 2.0: 75.0, 4.0: 75.0, 10.0: 75.0}
MEASURED_TASK_SECONDS: Final = 3.0
MEASURED_DEADLINE_SECONDS: Final = DEADLINE_SECONDS / TASK_SECONDS * MEASURED_TASK_SECONDS
FIRST_SECONDS: Final = 30.0
