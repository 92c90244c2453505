"""What a stream says after each batch, and in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from freshq_pipeline.errors import Unfinished, complain
from freshq_pipeline.gold.new_violations import with_earlier
from freshq_pipeline.report.ending import report_on, violated

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder


@dataclass(slots=True)
class Batches:
    """The published batches of a stream. Call it with the summary of each.

    Attributes:
        out: The output folder.
        reports: Whether the report follows each batch; if not, it is written in the end.
        summary: That of the last batch, with the new violations of all; None: there was none.
    """

    out: Folder
    reports: bool
    summary: dict[str, Any] | None = None

    def __call__(self, summary: dict[str, Any]) -> None:
        """Take the summary of a batch."""
        self.summary = summary if self.summary is None else with_earlier(summary, self.summary)
        if not self.reports:
            return
        violated(summary)
        problems: list[Unfinished] = []
        report_on(self.out, problems)
        for problem in problems:
            complain(str(problem))  # the next batch writes it again
