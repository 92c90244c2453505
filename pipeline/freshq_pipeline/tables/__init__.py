"""Silver to tables: one module per table, DataFrame -> DataFrame; only `gold` reads and writes."""
