"""What the pipeline brings into its driver has a bound, which is stated here for each function that does."""

import ast
from pathlib import Path

PIPELINE = Path(__file__).parents[3] / "pipeline" / "freshq_pipeline"

# Functions that bring rows into the driver, with the bounds of their rows.
BOUNDS = {
    "gold.build._inverted": "days of at most FEW_STEPS steps",
    "gold.build._others": "days, queues and groups",
    "gold.chains._chains_in": "chains of a batch, on an executor",
    "gold.figures._new_by_spark": "queues",
    "gold.figures._new_violations": "VIOLATIONS_HERE",
    "gold.figures._violating": "VIOLATIONS_HERE",
    "gold.figures._waits": "queues and histogram classes",
    "gold.figures.figures": "days, queues, groups and histogram classes",
    "gold.inversions.chunks": "rows over GROUP_ROWS",
    "gold.inversions.inversions_here": "FEW_STEPS",
    "gold.open_hours._opened": "hours",
    "gold.open_hours._surveyed": "hours",
    "gold.silver_days._days_that_share": "ids in SILVER_HERE_BYTES",
    "gold.silver_days.created_hours": "hours",
    "gold.silver_days._pairs": "pairs of days",
    "gold.silver_days.starts_us": "queues",
    "gold.totals._millionths": "days, queues, groups and kinds",
    "ingest.groups.in_groups": "files",
    "ingest.silver._quarantine": "reasons, and damaged files",
    "ingest.silver._unknown_fields": "MAX_UNKNOWN_FIELDS",
    "ingest.sound_files._by_day": "days",
    "replays.record.recorded": "queues",
    "replays.record.recorded_loads": "queues",
    "replays.replaying._read": "MAX_TASKS",
    "replays.replaying.replay": "queues",
    "replays.scenarios._simulated": "scenarios",
    "report.evidence.events_of": "events of MAX_VIOLATIONS tasks",
    "report.sections.chain_section": "hops",
    "report.sections.shed_counts": "queues, groups and reasons",
    "report.tables.all": "days and queues",
    "report.tables.first": "rows shown",
    "report.tables.largest": "rows shown",
    "report.time_steps._ends": "a day of a short recording",
    "report.time_steps._lists": "steps of time",
    "report.time_steps.by_minute": "steps of time",
    "report.time_steps.short_recording": "a day of a short recording",
    "runs.stream.run": "files in a batch",
}
CALLS = {"collect", "toArrow", "toPandas", "toLocalIterator", "to_table", "to_pandas", "to_pylist"}


def test_each_call_that_brings_rows_to_the_driver_has_a_bound() -> None:
    found = set()
    for file in PIPELINE.rglob("*.py"):
        module = ".".join(file.relative_to(PIPELINE).with_suffix("").parts)
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef) and any(
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in CALLS
                for call in ast.walk(function)
            ):
                found.add(f"{module}.{function.name}")
    assert found == BOUNDS.keys()
