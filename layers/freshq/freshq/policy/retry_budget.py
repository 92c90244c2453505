"""Retries as a fraction of first attempts."""

from __future__ import annotations

from freshq.policy.token_bucket import ROUNDING


class RetryBudget:
    """Retries as a fraction of first attempts, so that they cannot multiply an overload.

    Each first attempt adds a fraction, each retry takes one (Finagle's RetryBudget; the SRE book
    asks for 10 % in "Handling Overload"). With n first attempts there are at most
    `reserve + fraction * n` retries, whatever fails.

    Attributes:
        balance: Retries available now.
    """

    __slots__ = ("_cap", "_fraction", "balance")

    def __init__(self, fraction: float = 0.1, reserve: float = 10.0, cap: float = 100.0) -> None:
        """Start with the reserve.

        Args:
            fraction: Retries for each first attempt, greater than 0.
            reserve: Initial retries, so that a quiet queue may retry at all.
            cap: Most retries that can be saved: a calm day must not pay for a storm.
        """
        if not fraction > 0:
            msg = f"fraction: must be greater than 0, got {fraction}"
            raise ValueError(msg)
        if not 0 <= reserve <= cap:
            msg = f"reserve, cap: need 0 <= reserve <= cap, got {reserve}, {cap}"
            raise ValueError(msg)
        self._fraction = fraction
        self._cap = cap
        self.balance = float(reserve)

    def at(self, balance: float) -> RetryBudget:
        """Return a budget of the same rules with this balance."""
        budget = RetryBudget(self._fraction, 0.0, self._cap)
        budget.balance = min(self._cap, balance)
        return budget

    def deposit(self, first_attempts: int = 1) -> None:
        """Record first attempts."""
        self.balance = min(self._cap, self.balance + self._fraction * first_attempts)

    def spend(self) -> bool:
        """Return whether a retry may be made, and take it if so."""
        if self.balance < 1 - ROUNDING:
            return False
        self.balance = max(0.0, self.balance - 1)
        return True
