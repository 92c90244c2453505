"""Silver to gold, the tables: one module per table, DataFrame -> DataFrame; only `build` reads and writes."""
