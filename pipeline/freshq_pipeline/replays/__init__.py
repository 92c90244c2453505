"""The recorded load under other policies and capacities, queue by queue."""

from freshq_pipeline.replays.grid import Grid
from freshq_pipeline.replays.scenarios import replay

__all__ = ["Grid", "replay"]
