"""The recorded load under other policies and capacities, queue by queue."""

from freshq_pipeline.replay.grid import Grid
from freshq_pipeline.replay.scenarios import replay

__all__ = ["Grid", "replay"]
