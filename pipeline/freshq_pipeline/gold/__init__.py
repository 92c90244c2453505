"""Silver to gold: the published tables. All DataFrame to DataFrame; only `build` reads and writes."""
