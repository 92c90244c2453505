"""Made-up agents and callers of a call center, for `freshq match generate` and the examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random

LANGUAGES: Final = {"English": 0.6, "Spanish": 0.25, "French": 0.15}
GENDERS: Final = ("F", "M", "X")
FIRST_NAMES: Final = (
    "Ada", "Amir", "Bela", "Carla", "Chidi", "Dana", "Elif", "Farid", "Gita", "Hugo", "Ines", "Jun",
    "Kofi", "Lena", "Malik", "Nadia", "Omar", "Priya", "Quinn", "Rosa", "Sami", "Tara", "Uma", "Yusuf",
)  # fmt: skip
MEAN_CALL_SECONDS: Final = 180.0
MEAN_WRAP_UP_SECONDS: Final = 30.0
LEASE_SECONDS: Final = 900.0
# Above 1: callers have to wait.
LOAD: Final = 1.2
# Share of the connections that break silently; the agent is recovered when the lease expires.
LOST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Agent:
    """A person who takes calls."""

    agent_id: str
    attributes: dict[str, Any]


@dataclass(slots=True)
class MadeUpCaller:
    """A person who calls.

    Attributes:
        name: A name and a number, the caller's id.
        language: The preferred language.
        criteria: The wishes of the caller.
        called: Time of the call, in seconds since the start.
        call_seconds: Duration of the call.
        lost: Whether the connection breaks silently.
        waited_seconds: Time until an agent was found; None before.
        served_in: The language of the call: preferred, other or any.
    """

    name: str
    language: str
    criteria: dict[str, Any]
    called: float
    call_seconds: float
    lost: bool
    waited_seconds: float | None = None
    served_in: str = ""


def made_up_agents(number: int, rng: random.Random) -> list[Agent]:
    """Return made-up agents who speak one to three languages."""
    made = []
    for index in range(number):
        spoken = _languages(rng, rng.choices((1, 2, 3), (0.5, 0.35, 0.15))[0])
        attributes = {"language": set(spoken), "gender": rng.choices(GENDERS, (0.48, 0.48, 0.04))[0]}
        made.append(Agent(f"{_name(rng)}-{index + 1:03}", attributes))
    return made


def made_up_callers(number: int, agents_there: int, rng: random.Random) -> list[MadeUpCaller]:
    """Return made-up callers, in the order in which they call.

    Half of them insist on their language; the others accept a second language or any. One in five prefers a
    gender.
    """
    mean_gap_seconds = (MEAN_CALL_SECONDS + MEAN_WRAP_UP_SECONDS) / (LOAD * agents_there)
    now = 0.0
    made = []
    for index in range(number):
        now += rng.expovariate(1 / mean_gap_seconds)
        language, second = _languages(rng, 2)
        accepted: list[list[str | None]] = [[language], [language, second], [language, None]]
        criteria: dict[str, Any] = {"language": rng.choices(accepted, (0.5, 0.35, 0.15))[0]}
        if rng.random() < 0.2:  # noqa: PLR2004 - one in five
            criteria["gender"] = [rng.choice(("F", "M")), None]
        call_seconds = min(rng.expovariate(1 / MEAN_CALL_SECONDS), LEASE_SECONDS - 1)
        lost = rng.random() < LOST_SHARE
        made.append(MadeUpCaller(f"{_name(rng)}-{index + 1:03}", language, criteria, now, call_seconds, lost))
    return made


def _languages(rng: random.Random, number: int) -> list[str]:
    chosen: list[str] = []
    while len(chosen) < number:
        language = rng.choices(list(LANGUAGES), list(LANGUAGES.values()))[0]
        if language not in chosen:
            chosen.append(language)
    return chosen


def _name(rng: random.Random) -> str:
    return rng.choice(FIRST_NAMES)
