"""The line of callers who wait for a fitting resource, first come first served.

A caller joins the line and then looks for resources; a resource is queued and then looks for callers. Both
write before they read, so if they arrive at the same time, at least one of them sees the other. The side that
sees the other matches both in one transaction.
"""

from __future__ import annotations

import heapq
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from freshq.errors import IllegalTransition, LostRace, quoted
from freshq.matching import lifecycle
from freshq.matching.lifecycle import repeated
from freshq.matching.match import held_match, taken
from freshq.matching.places import questions_of
from freshq.matching.resource import Caller, CallerStatus, caller_id_of
from freshq.matching.stores.base import Change, Changed
from freshq.model.lifecycle import new_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.matching.lifecycle import Changes
    from freshq.matching.match import Match, Walk
    from freshq.matching.places import Attributes
    from freshq.matching.resource import Ask, Entry, Resource
    from freshq.matching.stores.base import MatchStore

    Ranks = tuple[tuple[Ask, ...], ...]


# Most resources fit one of the first callers; reading ten callers costs one unit.
FIRST_PAGE_CALLERS: Final = 10
PAGE_CALLERS: Final = 500
# Reading this many callers costs as much as the query of one question.
CALLERS_A_QUESTION: Final = 10
# Keys of the callers who ask one question, per page: the first key is nearly always the right one.
PAGE_KEYS: Final = 10


class CallerLine:
    """The line of callers of a store. Thread-safe."""

    def __init__(self, store: MatchStore, walk: Walk, changes: Changes) -> None:
        """Use a store.

        Args:
            store: The store of the callers and resources.
            walk: Finds queued resources.
            changes: Gives times.
        """
        self._store = store
        self._walk = walk
        self._changes = changes

    def callers(self, at_most: int | None = None) -> Iterator[Caller]:
        """Yield the waiting callers in order, lazily.

        Args:
            at_most: Maximum number; None for all.
        """
        limit, start_after, left = FIRST_PAGE_CALLERS, None, at_most
        while left is None or left > 0:
            limit = limit if left is None else min(limit, left)
            page = self._store.waiting_callers(limit, start_after)
            yield from page
            if len(page) < limit:
                return
            left = None if left is None else left - limit
            limit, start_after = PAGE_CALLERS, page[-1].sort_key

    # --- from the side of a resource

    def offer(self, resource_id: str) -> Resource:
        """Match an available resource with the first caller that it fits, or queue it."""

        def attempt() -> Resource:
            before = lifecycle.known(resource_id, self._store.get(resource_id))
            return self.put_back(
                before, lifecycle.offered(before, self._changes.clock(), self._changes.stamp)
            )

        return repeated(partial(LostRace.of_resource, resource_id), attempt)

    def put_back(self, before: Resource, queued: Resource) -> Resource:
        """Match a resource with the first caller that it fits, or queue it.

        Raises:
            Changed: If it has changed since it was read.
        """
        if before.caller_id is None and (served := self._serve(before, queued.since)) is not None:
            return served
        self._changes.commit(before, queued)
        return self.served(queued) or queued

    def served(self, queued: Resource) -> Resource | None:
        """Match a queued resource with the first caller that it fits.

        Returns:
            Its new version; None if it fits no caller, or is no longer queued.
        """
        try:
            return self._serve(queued, queued.since)
        except Changed:
            return None

    def _candidates(self, attributes: Attributes) -> Iterator[Caller]:
        """Yield waiting callers in order, including every caller that the resource fits.

        The front of the line is scanned while that is cheaper than one query for each question that the
        resource answers. These queries then find the callers behind it.
        """
        questions, last = questions_of(attributes), None
        left = CALLERS_A_QUESTION * len(questions)
        for caller in self.callers(left):
            left, last = left - 1, caller.sort_key
            yield caller
        if left == 0:
            yield from self._asking(questions, last)

    def _asking(self, questions: list[str], start_after: str | None) -> Iterator[Caller]:
        """Yield, in line order, the callers after `start_after` who ask any of `questions`."""
        keys = heapq.merge(*(self._keys_of(question, start_after) for question in questions))
        for key, asked in groupby(keys, key=lambda found: found[0]):
            caller = self._store.caller(caller_id_of(key))
            if caller is not None and caller.status is CallerStatus.WAITING and caller.sort_key == key:
                yield caller
            else:
                for _key, question in asked:
                    self._store.forget_line_key(question, key)

    def _keys_of(self, question: str, start_after: str | None) -> Iterator[tuple[str, str]]:
        """Yield the line keys of the callers who ask a question, each with the question."""
        while True:
            page = self._store.line_keys(question, PAGE_KEYS, start_after)
            yield from ((key, question) for key in page)
            if len(page) < PAGE_KEYS:
                return
            start_after = page[-1]

    def _serve(self, resource: Resource, since: float | None) -> Resource | None:
        for caller in self._candidates(resource.attributes):
            preference = caller.preference(resource.attributes)
            if preference is None:
                continue
            after = self._changes.matched(resource, since, caller.caller_id)
            change = Change(
                resource, after, caller_before=caller, caller_after=caller.served(after, *preference)
            )
            try:
                self._changes.write(change)
            except Changed:
                stored = self._store.get(resource.resource_id)
                if stored is None or stored.token != resource.token:
                    raise
                continue  # the caller was served by another resource, or has left
            return after
        return None

    # --- from the side of a caller

    def request(self, caller_id: str, ranks: Ranks) -> Match | None:
        """Return the caller's match, or join the line and return None.

        Args:
            caller_id: Its id.
            ranks: Its asks by rank.

        Raises:
            IllegalTransition: If it waits with other criteria.
        """

        def attempt() -> Match | None:
            caller = self._store.caller(caller_id)
            if caller is None:
                caller = Caller(caller_id, CallerStatus.WAITING, new_token(), ranks, self._changes.stamp())
                if (match := self._taken_now(caller)) is not None:
                    return match
                self._changes.write(Change(caller_after=caller))
            if caller.status is CallerStatus.SERVED:
                return self._match_of(caller)
            if caller.ranks != ranks:
                msg = f"caller {quoted(caller_id)}: waits with other criteria; abandon them first"
                raise IllegalTransition(msg, status=caller.status)
            return self._found(caller)

        return repeated(partial(LostRace.of_caller, caller_id), attempt)

    def _taken_now(self, caller: Caller) -> Match | None:
        """Match a new caller with a queued resource, before it joins the line.

        Raises:
            Changed: If a caller of this id has appeared.
        """

        def take(entry: Entry, ask: Ask, rank: int) -> Match | None:
            resource = self._walk.whole(entry)
            if resource is None:
                return None
            after = self._changes.matched(resource, resource.since, caller.caller_id)
            served = caller.served(after, ask, rank)
            try:
                self._changes.write(Change(resource, after, caller_after=served))
            except Changed:
                if self._store.caller(caller.caller_id) is not None:
                    raise
                return None
            return held_match(after, served)

        return next(taken(self._walk, caller.ranks, take), None)

    def _match_of(self, caller: Caller) -> Match:
        """Return the match of a served caller.

        Raises:
            Changed: If the match has ended in the meantime, and the caller with it.
        """
        resource = self._store.get(caller.resource_id or "")
        if resource is None or resource.token != caller.token:
            raise Changed
        return held_match(resource, caller)

    def _found(self, waiting: Caller) -> Match | None:
        """Give away the queued resources that fit a waiting caller; return the caller's match, if any."""
        given = self._give_away(waiting)
        if not given and self._changes.may_recover():
            given = self._changes.recover(self.served)
        if not given:
            return None
        caller = self._store.caller(waiting.caller_id)
        if caller is None or caller.status is CallerStatus.WAITING:
            return None
        return self._match_of(caller)

    def _give_away(self, waiting: Caller) -> int:
        """Give queued resources that fit a waiting caller to the first callers in line, until it has one.

        Returns:
            How many resources it found.
        """
        looked: set[str] = set()
        for entry, _ask in chain.from_iterable(map(self._walk.fitting, waiting.ranks)):
            if entry.resource.token in looked:
                continue
            looked.add(entry.resource.token)
            resource = self._walk.whole(entry)
            served = None if resource is None else self.served(resource)
            if served is not None and served.caller_id == waiting.caller_id:
                break
        return len(looked)

    def abandon(self, caller_id: str) -> bool:
        """Take a waiting caller out of the line.

        Returns:
            Whether the caller waited.

        Raises:
            IllegalTransition: If it is served.
        """

        def attempt() -> bool:
            caller = self._store.caller(caller_id)
            if caller is None:
                return False
            if caller.status is CallerStatus.SERVED:
                served = f"caller {quoted(caller_id)}: is served by resource {quoted(caller.resource_id)}"
                msg = f"{served}; complete or release the match"
                raise IllegalTransition(msg, resource_id=caller.resource_id, status=caller.status)
            self._changes.write(Change(caller_before=caller))
            return True

        return repeated(partial(LostRace.of_caller, caller_id), attempt)
