"""The tables: one module each, DataFrame -> DataFrame, without reading, writing or running anything."""
