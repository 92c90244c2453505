"""Closed forms of queueing theory, and confidence intervals, to check the simulator.

Servers work at rate 1 each unless said otherwise. References: Gross, Shortle, Thompson, Harris,
"Fundamentals of Queueing Theory" (4th ed., 2008); for impatient customers Barrer, "Queuing with
impatient customers and ordered service" (Operations Research 5(5), 1957).
"""

import math
import statistics
from collections.abc import Iterable
from typing import Final

# Student's t for a two-sided interval of 99.9 %, by degrees of freedom.
T_999: Final = {5: 6.869, 7: 5.408, 9: 4.781, 11: 4.437, 15: 4.073}


def erlang_c(servers: int, rho: float) -> float:
    """Return the probability that a task waits in M/M/c."""
    offered = servers * rho
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - rho)
    return last / (sum(terms) + last)


def mmc_wait(servers: int, rho: float) -> float:
    """Return the mean wait in M/M/c, over all tasks, the same under FIFO and LIFO."""
    return erlang_c(servers, rho) / (servers * (1 - rho))


def mmc_fifo_second_moment(servers: int, rho: float) -> float:
    """Return E[W^2] in M/M/c under FIFO. The wait of those that wait is exponential."""
    return 2 * erlang_c(servers, rho) / (servers * (1 - rho)) ** 2


def mmck_loss(servers: int, waiting: int, rho: float) -> float:
    """Return the share of tasks that find the bounded backlog of M/M/c full."""
    offered = servers * rho
    weights = [offered**n / math.factorial(n) for n in range(servers + 1)]
    weights += [weights[-1] * rho**n for n in range(1, waiting + 1)]
    return weights[-1] / sum(weights)


def mm1_patience_loss(rho: float, deadline: float) -> float:
    """Return the share of tasks that M/M/1 with a deadline on the wait does not serve."""
    left = math.exp(-(1 - rho) * deadline)
    return rho * left * (1 - rho) / (1 - rho**2 * left)


def md1_patience_loss(rho: float, deadline: float) -> float:
    """Return `mm1_patience_loss` for M/D/1, where the virtual wait is a finite sum."""
    below = sum(
        (-rho * (deadline - k)) ** k * math.exp(rho * (deadline - k)) / math.factorial(k)
        for k in range(math.floor(deadline) + 1)
    )
    return (1 - (1 - rho) * below) / (1 + rho * below)


def interval(samples: Iterable[float]) -> tuple[float, float]:
    """Return the mean of independent samples, and the half width of its 99.9 % confidence interval."""
    values = list(samples)
    width = T_999[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), width


def assert_agrees(samples: Iterable[float], theory: float, within: float) -> None:
    """Check that theory is within the interval, and that the interval is narrow."""
    mean, width = interval(samples)
    assert abs(mean - theory) <= width, f"{mean:.5f} +- {width:.5f}, theory {theory:.5f}"
    assert width <= within * theory, f"half width {width:.5f} is more than {within:.1%} of {theory:.5f}"
