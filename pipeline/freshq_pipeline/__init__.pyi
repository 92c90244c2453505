# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq_pipeline.errors import BadInput as BadInput
from freshq_pipeline.errors import PipelineError as PipelineError
from freshq_pipeline.replays.grid import Grid as Grid
from freshq_pipeline.replays.replaying import replay as replay
from freshq_pipeline.runs.frames import PipelineRun as PipelineRun
from freshq_pipeline.runs.frames import run as run
from freshq_pipeline.runs.frames import tables as tables
from freshq_pipeline.runs.request import Options as Options
from freshq_pipeline.schemas import Format as Format
