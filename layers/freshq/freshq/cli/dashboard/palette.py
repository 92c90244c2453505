"""Colors of the states, as the charts of the pipeline use them."""

from __future__ import annotations

from enum import StrEnum


class Colour(StrEnum):
    """Colours that colour-blind readers can tell apart, from the palette of Okabe and Ito (2008)."""

    SUCCESS = "#009E73"
    LATE = "#CC79A7"
    SHED = "#E69F00"
    FAILURE = "#D55E00"
    CANCELLED = "#999999"
    PENDING = "#56B4E9"
    TAKEN = "#0072B2"
