"""From recorded lines to canonical events: one module a format, all pure DataFrame -> DataFrame."""

from freshq_pipeline.sources.registry import canonical, canonical_files

__all__ = ["canonical", "canonical_files"]
