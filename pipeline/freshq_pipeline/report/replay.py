"""The section of the report about the last replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from freshq_pipeline.errors import BadInput
from freshq_pipeline.report import axes, charts
from freshq_pipeline.report.difference import difference
from freshq_pipeline.report.sections import Section
from freshq_pipeline.report.words import NO_NAME, conclusions, moment, replayed_days
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.last_replay import last_replay
from freshq_pipeline.storage.state import current

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq_pipeline.storage.folder import Folder

_TITLE: Final = "Replay under other policies"
_OLDER: Final = "It is a replay of an earlier run than the tables: of run {run_id}, complete up to {as_of}."
_CHECKED: Final = (
    "As a check, the table compares the recording with a replay of the recorded policy; expect the other "
    "scenarios to be off as far."
)


def replay_section(out: Folder, run_id: str) -> Section | None:
    """Return the section, None without a replay of the events that the tables are of.

    Args:
        out: The output folder.
        run_id: Id of the run that the report is of.
    """
    try:
        replay = last_replay(out)
    except BadInput as error:  # the tables do not need it
        return Section(_TITLE, f"There is no chart: {error}.")
    state = current(out)
    if replay is None or state is None or normalized(replay["events"]) != normalized(state.events):
        return None
    texts = [*conclusions(replay), f"{replayed_days(replay)}.", *_older(replay, run_id)]
    off = [one["check"] for one in replay["queues"] if not one["check"]["within"]]
    texts += [f"Caution, {difference(check)}." for check in off]
    notes = f"{_CHECKED} {replay['record']['imputation']}"
    scenarios = pd.DataFrame(replay["scenarios"]).fillna({"queue": NO_NAME})
    drawn = {
        str(queue): [axes.dressed(chart) for chart in charts.replayed(one)]
        for queue, one in scenarios.groupby("queue")
    }
    return Section(_TITLE, " ".join(texts), drawn, pd.DataFrame(map(_checked, replay["queues"])), notes)


def _older(replay: Mapping[str, Any], run_id: str) -> list[str]:
    if replay["run_id"] == run_id:
        return []
    return [_OLDER.format(run_id=replay["run_id"], as_of=moment(replay["as_of_ms"]))]


def _checked(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the check of a queue as a row of a table."""
    check, record = one["check"], one["record"]
    return {
        "queue": NO_NAME if one["queue"] is None else one["queue"],
        "policy": check["policy"],
        "servers": record["servers"],
        "in time, recorded": check["served_in_time_recorded"],
        "in time, replayed": check["served_in_time_replayed"],
        "difference_share": check["difference_ratio"],
        "not ended, left out": record["running"],
        "runs drawn": record["service_times_imputed"],
    }
