# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.model.telemetry import ClaimSpan as ClaimSpan
from freshq.model.telemetry import PutSpan as PutSpan
from freshq.model.telemetry import RunScope as RunScope
from freshq.model.telemetry import SettleSpan as SettleSpan
from freshq.model.telemetry import Telemetry as Telemetry
from freshq.telemetry.otel import OpenTelemetry as OpenTelemetry
from freshq.telemetry.prometheus import Prometheus as Prometheus
from freshq.worker.report import Observer as Observer
from freshq.worker.report import Outcome as Outcome
from freshq.worker.report import RunReport as RunReport
from freshq.worker.report import TaskLogFilter as TaskLogFilter
