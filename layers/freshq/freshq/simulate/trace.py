"""Recorded arrivals, one JSON object per line."""

from __future__ import annotations

import math
from array import array
from random import Random
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from freshq.model.task import MAX_PRIORITY
from freshq.model.validation import problem_of
from freshq.simulate.load import MAX_TASKS, Load, ServiceDistribution, positive, services

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Arrival(BaseModel):
    """One line of the file.

    Attributes:
        at_seconds: When the task arrived, by any clock. The simulation starts with the first arrival.
        service_seconds: How long it took; None: drawn.
        max_age_seconds: Age at which it was stale; None: the deadline of the simulation.
        priority: 0 to 9, higher first.
        group: Tenant or key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    at_seconds: float
    service_seconds: Annotated[float, Field(gt=0)] | None = None
    max_age_seconds: Annotated[float, Field(gt=0)] | None = None
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] = 0
    group: str | None = None

    def deadline(self, start: float, deadline_seconds: float) -> float:
        """Return when the task is stale, in seconds from `start`; its own max age may only be shorter."""
        age_seconds = min(deadline_seconds, self.max_age_seconds or deadline_seconds)
        return self.at_seconds - start + age_seconds


def read_trace(
    file: Path,
    deadline_seconds: float,
    duration_seconds: float | None = None,
    service: ServiceDistribution = ServiceDistribution.EXP,
    service_mean_seconds: float = 1.0,
    seed: int = 1,
) -> Load:
    """Return the load in a file, in order of arrival.

    Args:
        file: The file, in JSON Lines.
        deadline_seconds: Age at which a task is stale, unless its line says less.
        duration_seconds: Arrivals from then on are ignored; None: all are taken.
        service: Distribution of the service times that are not in the file.
        service_mean_seconds: Mean of these service times.
        seed: Seed of the draws.

    Raises:
        ValueError: If a line is invalid; the message names its number.
    """
    positive("deadline_seconds", deadline_seconds)
    positive("service_mean_seconds", service_mean_seconds)
    arrivals = sorted(_read(file), key=lambda arrival: arrival.at_seconds)
    start = arrivals[0].at_seconds
    if duration_seconds is not None:
        positive("duration_seconds", duration_seconds)
        arrivals = [arrival for arrival in arrivals if arrival.at_seconds - start < duration_seconds]
    else:
        # Includes the last arrival, so that a single one has a duration.
        duration_seconds = math.nextafter(arrivals[-1].at_seconds - start, math.inf)
    rng = Random(f"{seed}/services")  # noqa: S311 - a simulation
    drawn = services(service, service_mean_seconds, len(arrivals), rng)
    return _load(arrivals, drawn, deadline_seconds, duration_seconds)


def _load(
    arrivals: Sequence[Arrival], drawn: Sequence[float], deadline_seconds: float, duration_seconds: float
) -> Load:
    """Return the load of some arrivals; `drawn` has a service time for each that has none."""
    start = arrivals[0].at_seconds
    served = zip(arrivals, drawn, strict=True)
    created = [arrival.at_seconds - start for arrival in arrivals]
    levels = bytes(arrival.priority for arrival in arrivals)
    groups = [arrival.group for arrival in arrivals]
    return Load(
        created=array("d", created),
        service=array("d", [arrival.service_seconds or seconds for arrival, seconds in served]),
        deadline=array("d", [arrival.deadline(start, deadline_seconds) for arrival in arrivals]),
        duration_seconds=duration_seconds,
        levels=levels if any(levels) else b"",
        groups=groups if any(groups) else [],
    )


def _read(file: Path) -> list[Arrival]:
    arrivals = []
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    arrivals.append(_parse(file, number, line))
                if len(arrivals) > MAX_TASKS:
                    msg = f"{file}: more than {MAX_TASKS:,} arrivals; split it"
                    raise ValueError(msg)
    except OSError as error:
        msg = f"{file}: cannot be read: {error.strerror}"
        raise ValueError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{file}: not UTF-8 text: {error.reason}"
        raise ValueError(msg) from error
    if not arrivals:
        msg = f'{file}: no arrivals; give one JSON object a line, such as {{"at_seconds": 0.5}}'
        raise ValueError(msg)
    return arrivals


def _parse(file: Path, number: int, line: str) -> Arrival:
    try:
        return Arrival.model_validate_json(line)
    except ValidationError as error:
        problem = problem_of(error)
    message = problem.continued
    if problem.is_unknown_field:
        message = f"unknown field; known are {', '.join(Arrival.model_fields)}"
    msg = f"{file}, line {number}: " + (f"{problem.field}: " if problem.path else "") + message
    raise ValueError(msg)
