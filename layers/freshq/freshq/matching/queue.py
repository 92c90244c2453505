"""Match resources to callers; open a matching queue on each store."""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypedDict

from freshq.errors import NotFound, RefusedError, StoreError, TableMissing, needs, quoted
from freshq.matching import lifecycle
from freshq.matching.lifecycle import DEFAULT_LEASE_SECONDS, Changes
from freshq.matching.line import CallerLine
from freshq.matching.match import Match, Matches, Walk, held_match, match_lost
from freshq.matching.places import checked_resource_id, names_in, parse_attributes, partitions_of, place_of
from freshq.matching.resource import (
    ResourceStatus,
    checked_resource_status,
    later_end,
    parse_criteria,
    parse_data,
)
from freshq.matching.stores.base import Changed
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.forks import new_rlock
from freshq.model.storable_options import as_text
from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import EllipsisType
    from typing import Self, Unpack

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.matching.resource import Caller, Resource
    from freshq.matching.stores.base import MatchHistories, MatchStore, StoredValues

logger = logging.getLogger(__name__)
MAX_MATCHES: Final = 100
WORKER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# A verb reads the options again after this time: seldom, since a match costs little more than a read.
CHECK_SECONDS: Final = 60.0
MAX_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class MatchConfig:
    """The options of a table of resources.

    Attributes:
        order: FIFO: the resource that has waited longest is first; LIFO: the latest is first.
        lease_seconds: How long a match holds its resource unless extended; None: until it is settled.

    Examples:
        >>> MatchQueue.memory().configure(lease_seconds=60)
        MatchConfig(order=<Order.FIFO: 'fifo'>, lease_seconds=60)
    """

    order: Order = Order.FIFO
    lease_seconds: float | None = DEFAULT_LEASE_SECONDS


def checked_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check options by name; return them.

    Raises:
        ValueError: If one is wrong; names it.
    """
    checked = dict(values)
    if "order" in values:
        if values["order"] not in (Order.FIFO, Order.LIFO):
            msg = f"order: must be fifo or lifo, got {quoted(values['order'])}"
            raise ValueError(msg)
        checked["order"] = Order(values["order"])
    if values.get("lease_seconds") is not None:
        checked_seconds("lease_seconds", values["lease_seconds"], above_zero=True)
    return checked


class SharedMatchOptions:
    """The options of the resources in one process, as `SharedOptions` has those of a queue. Thread-safe.

    An option that is not stored has its default. While nothing is stored and there are no resources, the
    first process that names options stores them.

    Attributes:
        config: The options to follow.
    """

    def __init__(
        self,
        store: MatchStore,
        named: Mapping[str, Any],
        use: Callable[[MatchConfig], None],
        *,
        override: bool,
    ) -> None:
        """Read nothing yet.

        Args:
            store: The store of the resources.
            named: The options that the process named.
            use: Called with the options to follow, at first and after each change.
            override: Whether to use the named options instead of the stored ones, and store none.

        Raises:
            ValueError: If an option is wrong.
        """
        self._store = store
        self._named = checked_config(named)
        self._override = override
        self._use = use
        self._lock = new_rlock()
        self._check_at = -math.inf
        self._is_known = False
        self._is_new = False
        self.config = MatchConfig(**self._named)

    def follow(self, *, writes: bool = False) -> None:
        """Read the stored options if that is due, and use them.

        Args:
            writes: Whether the verb writes: the options of new resources are stored first.

        Raises:
            ValueError: If the process named another value than the resources have.
            StoreError: If the store did not answer at the first verb.
        """
        if time.monotonic() >= self._check_at:
            with self._lock:
                try:
                    self._follow(self._read())
                except TableMissing:
                    return  # the verb reports it
                except (StoreError, ValueError):
                    if not self._is_known:
                        raise
                    logger.warning("the resources keep their options", exc_info=True)
        if writes and self._is_new and not self._override:
            self.store_named()

    def store_named(self) -> None:
        """Store the named options, or that none was named, with new resources; otherwise check them.

        Raises:
            ValueError: If the resources have other values.
            StoreError: If the store did not answer.
        """
        with self._lock:
            stored = self._read()
            if stored is None:
                values = self._named
                if not self._store.write_options(_stored_form(values), None):
                    stored = self._read()
                else:
                    self._is_known, self._is_new = True, False
                    self._apply(values)
            if stored is not None:
                self._follow(stored)

    def store_if_named(self) -> None:
        """Store the named options, if any, as `store_named` does."""
        if self._named and not self._override:
            self.store_named()

    def change(self, values: Mapping[str, Any]) -> MatchConfig:
        """Store options, and use them; return all. Without options, read the stored ones.

        Raises:
            ValueError: If one is wrong, or the process named another value of an option that is left out.
            RefusedError: If other processes changed the options at each try.
            StoreError: If the store did not answer.
        """
        checked = checked_config(values)
        with self._lock:
            if not checked:
                self._follow(self._read())
            elif not any(self._changes(checked) for _ in range(MAX_TRIES)):
                raise RefusedError("resources: other processes changed their options; try again")
            return self.config

    def _changes(self, checked: dict[str, Any]) -> bool:
        """Store checked options, and use them; return False if another process changed them in between."""
        stored = self._read()
        first_values = {} if self._override else self._named
        before = first_values if stored is None else checked_config(stored.values)
        new = {**before, **checked}
        named = {name: self._named[name] for name in self._named.keys() - checked.keys()}
        if not self._is_known and not self._override:
            self._check(new, named)
        if not self._store.write_options(_stored_form(new), None if stored is None else stored.version):
            return False
        self._named = named
        self._is_known, self._is_new = True, False
        self._apply(new)
        return True

    def _read(self) -> StoredValues | None:
        stored = self._store.read_options()
        self._check_at = time.monotonic() + CHECK_SECONDS
        return stored

    def _follow(self, stored: StoredValues | None) -> None:
        if stored is None:
            self._apply(self._named)
        else:
            values = checked_config(stored.values)
            # What this process named for new resources was never stored.
            self._is_known = self._is_known and not self._is_new
            if not self._is_known and not self._override:
                try:
                    self._check(values)
                except ValueError:
                    self._check_at = -math.inf  # each verb is refused
                    raise
            self._apply(values)
        self._is_known, self._is_new = True, stored is None

    def _apply(self, values: Mapping[str, Any]) -> None:
        known = {name: values[name] for name in MatchConfig.__slots__ if name in values}
        config = MatchConfig(**(known | self._named if self._override else known))
        if config != self.config or not self._is_known:
            self.config = config
            self._use(config)

    def _check(self, values: Mapping[str, Any], named: Mapping[str, Any] | None = None) -> None:
        """Check that no option was named with another value than the resources have."""
        known = {name: values[name] for name in MatchConfig.__slots__ if name in values}
        theirs = MatchConfig(**known)
        for name, ours in sorted((self._named if named is None else named).items()):
            has = getattr(theirs, name)
            if has != ours:
                raise ValueError(_contradiction(name, has, ours, is_stored=name in values))


def _contradiction(name: str, theirs: object, ours: object, *, is_stored: bool) -> str:
    flag = f"--{'order' if name == 'order' else 'lease'} {as_text(ours)}"
    return (
        f"{name}: the resources have {as_text(theirs)} {'stored' if is_stored else 'by default'}, and "
        f"{as_text(ours)} was named; leave it out, change them by configure({name}=...) or freshq match "
        f"configure {flag}, or open them with override=True (in an address, override=on)"
    )


def _stored_form(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Order) else value for name, value in values.items()}


class MatchQueueOptions(TypedDict, total=False):
    """Options by name, as the constructors of `MatchQueue` take them; `MatchQueue` describes them."""

    order: Order | str
    lease_seconds: float | None
    override: bool
    worker_name: str | None
    clock: Callable[[], float] | None


class _Closed:
    """Stands for the parts of a closed queue: any use but another `close` raises RefusedError."""

    def close(self) -> None:
        return

    def __repr__(self) -> str:
        return "closed"

    def __getattr__(self, name: str) -> NoReturn:
        raise RefusedError("queue: closed; open another MatchQueue")


class MatchAdmin:
    """The upkeep of a `MatchQueue`, and the parts that another process needs to settle a match.

    Attributes:
        history: The histories of resources and callers; None if the store keeps none itself.
    """

    history: MatchHistories | None

    def __init__(
        self, store: MatchStore, changes: Changes, line: CallerLine, options: SharedMatchOptions
    ) -> None:
        """Use the parts of a queue."""
        self.history = store.history
        self._options = options
        self._store = store
        self._changes = changes
        self._line = line

    def now(self) -> float:
        """Return the queue's time, in seconds since the epoch."""
        return self._changes.clock()

    def held(self, resource_id: str, token: str | None = None) -> Match:
        """Return the match that holds a resource, for another process to settle it.

        The caller's criteria are not stored: `criteria` is empty and `rank` 0.

        Args:
            resource_id: The resource.
            token: The token of the match; None for the match of any holder, so that a supervisor can free a
                resource whose holder is gone. A holder that lives gets LeaseLost at its next verb.

        Raises:
            NotFound: If it is not registered.
            LeaseLost: If no match holds it, or none under this token.
        """
        resource = self._store.get(checked_resource_id(resource_id))
        if resource is None:
            raise NotFound.of_resource(resource_id)
        if resource.status is not ResourceStatus.MATCHED or token not in (None, resource.token):
            raise match_lost(resource_id, resource)
        return held_match(resource)

    def recover(self) -> int:
        """Return resources whose callers' leases have expired to their old positions.

        Reads every registered resource. A recovered resource that fits a waiting caller is matched to it. In
        a SQL database, some events of the history past their retention are deleted as well.

        Returns:
            How many were recovered.
        """
        self._options.follow()
        self._store.tidy(self.now())
        return self._changes.recover(self._line.served)


def _named_options(
    order: Order | str | None,
    lease_seconds: float | EllipsisType | None,
    override: object,
    worker_name: str | None,
) -> dict[str, Any]:
    """Return the options to store that a process named.

    Raises:
        ValueError: If `override` or `worker_name` is wrong.
    """
    if not isinstance(override, bool):
        msg = f"override: must be True or False, got {quoted(override)}"
        raise ValueError(msg)
    if worker_name is not None and not (isinstance(worker_name, str) and WORKER_NAME.fullmatch(worker_name)):
        msg = f"worker_name: must have 1 to 64 of A-Z a-z 0-9 _ . -, got {quoted(worker_name)}"
        raise ValueError(msg)
    named: dict[str, Any] = {} if order is None else {"order": order}
    return named | ({} if lease_seconds is ... else {"lease_seconds": lease_seconds})


class MatchQueue:
    """Waiting resources, and callers who each take the first resource that fits.

    A waiting resource has an entry for each combination of values that callers can ask for. A match deletes
    all of them in one transaction. Thread-safe. Invalid arguments raise ValueError before any write. A store
    that does not answer raises StoreError; it never looks like an empty queue. `with` closes the queue.

    Attributes:
        admin: Upkeep, and the parts that another process needs to settle a match.

    Examples:
        >>> agents = MatchQueue.memory()
        >>> agent = agents.register("Billy", attributes={"language": {"English", "French"}})
        >>> agent = agents.offer("Billy")
        >>> (match,) = agents.match({"language": ["French"]})
        >>> match.resource_id
        'Billy'
    """

    admin: MatchAdmin

    def __init__(
        self,
        store: MatchStore,
        order: Order | str | None = None,
        lease_seconds: float | EllipsisType | None = ...,
        clock: Callable[[], float] | None = None,
        *,
        override: bool = False,
        worker_name: str | None = None,
    ) -> None:
        """Use a store; `memory`, `sql` and `dynamodb` open one.

        Args:
            store: The store of the resources.
            order: fifo: the resource that has waited longest is first; lifo: the latest resource is first.
                By default the stored order, or fifo.
            lease_seconds: How long a match holds its resource unless extended; None: until it is completed or
                released. By default the stored lease, or an hour.
            clock: Returns the time in seconds since the Unix epoch; None for the store's. A
                given clock is used without correction.
            override: Use the order and the lease that are named here instead of the stored ones, and store
                none. Without it, naming another value is an error at the first verb.
            worker_name: The name of this process or desk, so that listings show who holds a resource: at most
                64 of A-Z a-z 0-9 _ . -. None for no name.

        Raises:
            ValueError: If an option is wrong.
        """
        named = _named_options(order, lease_seconds, override, worker_name)
        self._store = store
        self._options = SharedMatchOptions(store, named, self._follow, override=override)
        config = self._options.config
        used_clock = store.clock if clock is None else clock
        self._changes = Changes(store, used_clock, config.lease_seconds, worker_name)
        self._walk = Walk(store, newest_first=config.order is Order.LIFO)
        self._line = CallerLine(store, self._walk, self._changes)
        self.admin = MatchAdmin(store, self._changes, self._line, self._options)
        self._matches = Matches(self._walk, self._changes, self.admin.recover)

    def _follow(self, config: MatchConfig) -> None:
        self._changes.lease_seconds = config.lease_seconds
        self._walk.newest_first = config.order is Order.LIFO

    # --- resources

    def __repr__(self) -> str:
        """Return the class and the tables, without secrets."""
        return f"{type(self).__name__}({self._store!r})"

    def register(self, resource_id: str, *, attributes: Mapping[str, Any], data: Any = None) -> Resource:
        """Register a resource: available, not yet waiting. Repeating it changes nothing.

        An available resource may be registered again with other attributes or data.

        Args:
            resource_id: Its id, at most 256 bytes.
            attributes: The values that callers can ask for: names, each with a string or a set of strings.
            data: What callers need but do not ask for, such as a name: any JSON value, returned with every
                match. With the attributes at most as large as a payload.

        Raises:
            ValueError: If an argument is wrong, or the attributes need more entries than one transaction
                can change.
            IllegalTransition: If it has other attributes or data, and is queued or matched.
        """
        checked_resource_id(resource_id)
        parsed = parse_attributes(attributes)
        data_json = parse_data(data, parsed)
        self._options.follow(writes=True)
        if parsed:
            self._store.add_names(parsed.keys())
        self._store.add_combinations(partitions_of(parsed))
        return self._changes.change(
            resource_id, lambda before: lifecycle.registered(resource_id, parsed, data_json, before)
        )

    def unregister(self, resource_id: str) -> None:
        """Delete an available resource.

        Raises:
            NotFound: If it is not registered.
            IllegalTransition: If it is queued or matched.
        """
        checked_resource_id(resource_id)
        self._options.follow()
        self._changes.change(resource_id, lambda before: lifecycle.unregistered(resource_id, before))

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource; None if it is not registered."""
        return self._store.get(checked_resource_id(resource_id))

    def resources(self, status: ResourceStatus | str | None = None) -> Iterator[Resource]:
        """Yield the registered resources in any order, lazily.

        Args:
            status: Only those in this state; None for all.

        Raises:
            ValueError: If there is no such state.
        """
        wanted = None if status is None else checked_resource_status(status)
        return (found for found in self._store.resources() if wanted in (None, found.status))

    def offer(self, resource_id: str) -> Resource:
        """Put an available resource into the queue, behind all waiting resources.

        If it fits callers in the line, it is matched to the first of them immediately: its new status is then
        MATCHED, and `caller_id` names the caller. A resource whose caller's lease has expired gets its old
        position back.

        Raises:
            NotFound: If it is not registered.
            IllegalTransition: If it is queued or matched.
        """
        checked_resource_id(resource_id)
        self._options.follow(writes=True)
        return self._line.offer(resource_id)

    def withdraw(self, resource_id: str) -> Resource:
        """Take a resource out of the queue; it stays registered. An available resource is left unchanged.

        Raises:
            NotFound: If it is not registered.
            IllegalTransition: If it is matched, and its lease has not expired.
        """
        checked_resource_id(resource_id)
        self._options.follow()
        return self._changes.withdraw(resource_id)

    def depths(self, *, limit: int | None = None) -> dict[str, int]:
        """Return how many resources wait for each full combination of values, by its name.

        A resource counts in every combination that it can serve: the depth of ``gender=F&language=English``
        is the number of such resources. The store counts; the result is exact while nothing changes.

        Args:
            limit: Where to stop counting in each combination, which bounds the reads; None counts all.

        Raises:
            ValueError: If `limit` is below 1.
        """
        if limit is not None:
            checked_count("limit", limit)
        depths = {
            combination: self._store.count(place_of(combination), names_in(combination), limit)
            for combination in self._store.combinations()
        }
        return {combination: depth for combination, depth in depths.items() if depth}

    def waiting(self) -> int:
        """Return how many resources wait, each counted once."""
        return len(self._walk.waiting())

    # --- callers

    def match(self, criteria: Any, *, limit: int = 1) -> list[Match]:
        """Take the resources that fit, in the order of the queue.

        If too few are waiting, resources whose callers' leases have expired are recovered first: at most
        once in a tenth of a lease or in six seconds, and not before a lease can have expired.

        Args:
            criteria: Names, each with the wanted value: a string; a set of strings, any of which will do; or
                a list of strings, sets and None in order of preference, where None is any. Names left out do
                not matter. Or a list of such mappings in order of preference.
            limit: Maximum number of matches, 1 to 100.

        Returns:
            The matches, best first; empty if nothing fits.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer before the first match. Later failures return the matches
                made so far.
        """
        ranks = parse_criteria(criteria)
        checked_count("limit", limit, at_most=MAX_MATCHES)
        self._options.follow(writes=True)
        found: list[Match] = []
        try:
            for match in islice(self._matches.taken(ranks), limit):
                found.append(match)  # noqa: PERF402 - kept if the store fails at the next one
        except StoreError:
            if not found:
                raise
            logger.warning("matched only %d of %d resources", len(found), limit, exc_info=True)
        return found

    def request(self, criteria: Any, *, caller_id: str) -> Match | None:
        """Return the match of a caller, who waits in line while no queued resource fits.

        A waiting caller is served when a fitting resource is queued, first come first served. Call again with
        the same arguments to get the match: the caller keeps its place. The lease begins when the caller is
        served, so call at least once per lease. `complete` and `release` forget the caller.

        Args:
            criteria: As for `match`.
            caller_id: The caller's own id, at most 256 bytes.

        Returns:
            The match; None while the caller waits.

        Raises:
            ValueError: If an argument is wrong.
            IllegalTransition: If the caller waits with other criteria.
        """
        ranks = tuple(tuple(asks) for asks in parse_criteria(criteria))
        checked_resource_id(caller_id, "caller_id")
        self._options.follow(writes=True)
        return self._line.request(caller_id, ranks)

    def abandon(self, caller_id: str) -> bool:
        """Take a waiting caller out of the line.

        Returns:
            Whether the caller waited.

        Raises:
            IllegalTransition: If the caller is served: complete or release the match instead.
        """
        return self._line.abandon(checked_resource_id(caller_id, "caller_id"))

    def callers(self) -> Iterator[Caller]:
        """Yield the waiting callers in order, lazily."""
        return self._line.callers()

    def complete(self, match: Match) -> Resource:
        """End a match: its resource is available, but not queued; `offer` puts it last in the queue again.

        Raises:
            LeaseLost: If the match no longer holds it.
        """
        after = lifecycle.available(match.held())
        self._matches.settle(match, after)
        return after

    def release(self, match: Match) -> Resource:
        """Give a resource back unused: it waits in its old position, as after an expired lease.

        If it fits callers in the line, it is matched to the first of them immediately, as by `offer`.

        Raises:
            LeaseLost: If the match no longer holds it.
        """
        held = match.held()
        self._options.follow()
        try:
            return self._line.put_back(held, lifecycle.queued(held, self._changes.stamp))
        except Changed:
            raise self._matches.lost(match) from None

    def extend(self, match: Match, *, lease_seconds: float | None = None) -> Match:
        """Hold a resource for `lease_seconds` from now; None for the queue's lease. Never shortens a lease.

        A match without a lease lasts until it is settled.

        Returns:
            The match with its new end and the same token.

        Raises:
            LeaseLost: If the match no longer holds it.
        """
        self._options.follow()
        end = later_end(match.lease_until, self._changes.lease_end(lease_seconds))
        extended = replace(match, lease_until=end)
        self._matches.settle(match, extended.held())
        return extended

    # --- the store

    def close(self) -> None:
        """Close the connections that the queue opened. Matches stay valid; later verbs raise RefusedError."""
        self._store.close()
        for part in (self, self.admin):
            vars(part).update(dict.fromkeys([name for name in vars(part) if name.startswith("_")], _Closed()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def create_table(self) -> None:
        """Create the tables that the store needs, unless they exist; return once they can be used.

        The order and the lease that this process named are stored, for every process that opens them.

        Raises:
            ValueError: If the resources have other options.
        """
        self._store.create_table()
        self._options.store_if_named()

    def configure(
        self, *, order: Order | str | None = None, lease_seconds: float | EllipsisType | None = ...
    ) -> MatchConfig:
        """Store the order or the lease; every process follows it within a minute.

        Args:
            order: fifo or lifo.
            lease_seconds: How long a match holds its resource unless extended; None: until it is settled.

        Returns:
            The options that this process follows now.

        Raises:
            ValueError: If an option is wrong, or the process named another value of one that is left out;
                nothing was written.
            RefusedError: If other processes changed the options at each try.
        """
        given: dict[str, Any] = {} if order is None else {"order": order}
        given |= {} if lease_seconds is ... else {"lease_seconds": lease_seconds}
        return self._options.change(given)

    def delete_table(self) -> None:
        """Delete the tables of the store with every resource, if they exist; return once they are gone.

        Raises:
            StoreError: If the table is not a table of resources; nothing was deleted.
        """
        self._store.delete_table()

    @classmethod
    def memory(cls, **options: Unpack[MatchQueueOptions]) -> Self:
        """Return a queue in this process's memory, for tests and trials."""
        from freshq.matching.stores.memory import MemoryMatchStore

        return cls(MemoryMatchStore(), **options)

    @classmethod
    def dynamodb(
        cls, table: str, client: DynamoDBClient | None = None, **options: Unpack[MatchQueueOptions]
    ) -> Self:
        """Return a queue on its own DynamoDB table.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            **options: As for `MatchQueue`.

        Raises:
            MissingExtra: If the extra `aws` is not installed.
        """
        with needs("aws"):
            from freshq.matching.stores.dynamodb import DynamoDBMatchStore

        return cls(DynamoDBMatchStore(table, client), **options)

    @classmethod
    def sql(
        cls,
        url: str,
        table: str = "resources",
        *,
        history: bool | None = None,
        history_seconds: float | None = None,
        **options: Unpack[MatchQueueOptions],
    ) -> Self:
        """Return a queue in SQLite, PostgreSQL, MariaDB or MySQL; nothing is sent before the first call.

        Args:
            url: Such as `sqlite:///agents.db`, `postgresql://user@host/name` or `mariadb://user@host/name`.
            table: Name of the table of resources, and prefix of the names of the other tables.
            history: Whether every change of a waiting resource or a caller also writes an event for the data
                pipeline, in the same transaction. `create_table` applies it, for all programs; False
                stops the history and deletes its events. None: unchanged.
            history_seconds: How long events are kept. None: a week.
            **options: As for `MatchQueue`.

        Raises:
            ValueError: If an argument is wrong.
            MissingExtra: If the extra `sql` is not installed.
        """
        with needs("sql"):
            from freshq.matching.stores.sql import SqlMatchStore
            from freshq.stores.sql.history import history_seconds_for

        seconds = history_seconds_for(history, history_seconds)
        return cls(SqlMatchStore(url, table, history_seconds=seconds), **options)
