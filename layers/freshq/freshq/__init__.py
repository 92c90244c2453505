"""freshq: a task queue for work that loses value with age.

`__init__.pyi` lists the names that a first application needs. The rooms export the rest in the same way:
`freshq.policy`, `freshq.matching`, `freshq.feeds`, `freshq.telemetry`, `freshq.errors`, `freshq.worker`,
`freshq.model`, `freshq.stores` and `freshq.queue`. A name is loaded when it is first used.
"""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
