"""Help for tests of applications: a clock to advance, a function that runs due tasks, assertions, faults.

pytest finds the fixtures of `freshq.testing.plugin` by itself; nothing else here needs pytest. A name is
loaded when it is first used, so that a run of pytest without tests of freshq loads next to nothing.
"""

from __future__ import annotations

from freshq._exports import exports

__getattr__, __dir__ = exports(__name__)
