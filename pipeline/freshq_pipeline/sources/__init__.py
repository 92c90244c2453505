"""From recorded lines to canonical events: one module a format, all pure DataFrame -> DataFrame."""

from freshq_pipeline.sources.registry import canonical

__all__ = ["canonical"]
