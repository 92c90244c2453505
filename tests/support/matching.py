"""Match queues for tests, and shortcuts to use them."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from types_boto3_dynamodb import DynamoDBClient

from freshq import MatchQueue
from freshq.matching import Match
from freshq.matching.stores.memory import MemoryMatchStore
from freshq.matching.stores.sql import SqlMatchStore, tables_of
from tests.conftest import Clock

# The agents of the article, in the order in which they are queued.
ARTICLE = {
    "Remy": {"language": {"English"}, "gender": "T"},
    "Billy": {"language": {"English", "French", "Spanish"}, "gender": "M"},
    "Christine": {"language": {"Spanish"}, "gender": "F"},
    "Courtney": {"language": {"English", "Spanish"}, "gender": "F"},
    "Ellen": {"language": {"English", "French", "Spanish"}, "gender": "F"},
}


# Engines whose tables of resources are made: to empty them is quicker than to make them.
_made: set[str] = set()


@dataclass
class Desk:
    """An empty store, and queues on it that share a clock."""

    clock: Clock = field(default_factory=Clock)
    client: DynamoDBClient | None = None
    table: str = field(default_factory=lambda: f"agents-{uuid.uuid4().hex}")
    memory: MemoryMatchStore = field(default_factory=MemoryMatchStore)
    engine: sa.Engine | None = None

    def queue(self, **options: Any) -> MatchQueue:
        """Return a new queue on the store, as another process would have it."""
        options = {"clock": self.clock, **options}
        if self.engine is not None:
            return MatchQueue(SqlMatchStore(self.engine), **options)
        if self.client is None:
            return MatchQueue(self.memory, **options)
        return MatchQueue.dynamodb(self.table, self.client, **options)

    def staffed(self, **options: Any) -> MatchQueue:
        """Return a queue in which the article's agents wait."""
        queue = self.queue(**options)
        for name, attributes in ARTICLE.items():
            join(queue, name, attributes)
            self.clock.advance(1)
        return queue


def join(queue: MatchQueue, resource_id: str, attributes: dict[str, Any]) -> None:
    """Register a resource and enqueue it."""
    queue.register(resource_id, attributes=attributes)
    queue.offer(resource_id)


def names(matches: Iterable[Match]) -> list[str]:
    """Return the id of each match."""
    return [match.resource_id for match in matches]


def one(queue: MatchQueue, criteria: Any) -> Match:
    """Match a resource that must be there."""
    (match,) = queue.match(criteria)
    return match


def emptied_resources(engine: sa.Engine) -> sa.Engine:
    """Return an engine on empty tables of resources."""
    if str(engine.url) not in _made:
        SqlMatchStore(engine).create_table()
        _made.add(str(engine.url))
    with engine.begin() as connection:
        for table in tables_of("resources", engine.dialect.name).metadata.sorted_tables:
            connection.execute(table.delete())
    return engine
