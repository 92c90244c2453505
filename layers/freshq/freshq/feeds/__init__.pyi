# The public names of this package, listed once: for type checkers, and for `__init__.py`, which loads them.

from freshq.feeds.relay import Relay as Relay
from freshq.feeds.schedules import Cron as Cron
from freshq.feeds.schedules import Every as Every
from freshq.feeds.schedules import Schedule as Schedule
from freshq.feeds.schedules import Scheduler as Scheduler
