"""Sums up a simulation in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.simulate import Cell, Result

# The load at which a sweep is summed up: clearly too much, and not beyond what happens.
TELLING_LOAD: Final = 3.0


def sentence_of(result: Result) -> str:
    """Return what became of the tasks of one simulation, such as `At 3 times the capacity, 33 % ...`."""
    if not result.offered:
        return "No task arrived."
    in_time, late = (
        _percent(count / result.offered) for count in (result.served_in_time, result.served_late)
    )
    said = f"At {result.load:.2g} times the capacity, {in_time} of the tasks are done in time and "
    said += f"{_percent(result.shed_ratio)} shed"
    if result.served_late:
        said += f"; {late} are done too late, which takes {_percent(result.wasted_ratio)} of the work"
    if result.wait_p50_seconds is not None:
        said += f"; half of those in time wait less than {result.wait_p50_seconds:.2g} s"
    return f"{said}."


def sentence_of_sweep(cells: Sequence[Cell]) -> str:
    """Return which policies do most and least in time under much load."""
    load = min({cell.load for cell in cells}, key=lambda one: abs(one - TELLING_LOAD))
    under = sorted((cell for cell in cells if cell.load == load), key=lambda cell: -cell.result.goodput_ratio)
    # Above 1 is the chance of the draws.
    used = {cell.policy: _percent(min(1.0, cell.result.goodput_ratio)) for cell in under}
    (_, most), *_, (worst, least) = used.items()
    alike = _all([policy for policy, share in used.items() if share == most])
    return (
        f"At {load:g} times the capacity, {alike} use {most} of it for tasks done in time, {worst} {least}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _all(names: Sequence[str]) -> str:
    """Return names as a list in a sentence; names that contain a comma are quoted."""
    shown = [f"{name!r}" if "," in name else name for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
