"""Who is leased what: parked lease requests, shared out whenever something can be had.

Knows nothing of messages' bytes, peers' health or batches. At most one request an actor is parked.
"""

from __future__ import annotations

from async_agent_rl.buffer.admission import Admission, Refusal
from async_agent_rl.buffer.groups import GroupTable
from async_agent_rl.protocol import Lease, LeaseRequest


class LeaseDesk:
    """Parks requests, answers each at most once, and measures how long the staleness bound alone refused them."""

    def __init__(self, table: GroupTable, admission: Admission, slots: int) -> None:
        """
        Args:
            slots: episodes one actor can play at once; it never holds more leases.
        """
        self._table = table
        self._admission = admission
        self._slots = slots
        self._parked: dict[str, LeaseRequest] = {}
        self._absent: set[str] = set()
        self._blocked_s = 0.0
        self._blocked_since_s: float | None = None

    def park(self, actor: str, request: LeaseRequest) -> None:
        """Take the place of any older request of this actor."""
        self._parked[actor] = request

    def forget(self, actor: str) -> None:
        """The actor started anew: it knows nothing of an older request."""
        self._parked.pop(actor, None)
        self._absent.discard(actor)

    def suspend(self, actor: str, unanswered: LeaseRequest | None) -> None:
        """The actor seems to be gone. Its request stays parked: if it is back one day, it still waits for the answer.

        Args:
            unanswered: the request whose answer could not be sent, if any.
        """
        self._absent.add(actor)
        if unanswered is not None:
            self._parked.setdefault(actor, unanswered)

    def resume(self, actor: str) -> None:
        self._absent.discard(actor)

    def grant(self, now_s: float) -> dict[str, list[Lease]]:
        """Share out what can be leased now, one group at a time to the actor with most room.

        Returns:
            The answers to the requests that are no longer parked; none of them empty.
        """
        rooms = self._rooms()
        granted: dict[str, list[Lease]] = {}
        while rooms:
            actor = max(rooms, key=lambda name: rooms[name])
            leases = []
            if rooms[actor] > 0:
                may_open = self._admission.openings(self._table.num_live) > 0
                leases = self._table.lease_some(actor, rooms[actor], may_open, now_s)
            if not leases:
                break  # nothing for the one with most room is nothing for anyone
            granted.setdefault(actor, []).extend(leases)
            rooms[actor] -= len(leases)
        for actor in granted:
            del self._parked[actor]
        self._measure_blocked(now_s)
        return granted

    def blocked_s(self, now_s: float) -> float:
        """Seconds in which some actor had room and the staleness bound alone refused it."""
        return self._blocked_s + (0.0 if self._blocked_since_s is None else now_s - self._blocked_since_s)

    def _rooms(self) -> dict[str, int]:
        present = (item for item in self._parked.items() if item[0] not in self._absent)
        return {actor: self._room(actor, request) for actor, request in present}

    def _room(self, actor: str, request: LeaseRequest) -> int:
        """Leases this actor may get now; 0 while fewer than it demands are to be had.

        Its own count of free slots may be older than our last grant, so what it holds by our book is taken off.
        """
        room = min(request.capacity, self._slots - self._table.num_leased_to(actor))
        if request.minimum > 1 and self._table.num_leased > 0:
            # With nothing out, nothing can add to what is available: holding that back would be a deadlock.
            openings = self._admission.openings(self._table.num_live)
            available = self._table.num_waiting + openings * self._table.group_size
            if min(room, available) < request.minimum:
                return 0
        return room

    def _measure_blocked(self, now_s: float) -> None:
        # Whoever still has room found nothing, so only admission can stand in the way.
        has_room = any(room > 0 for room in self._rooms().values())
        is_blocked = has_room and self._admission.refusal(self._table.num_live) is Refusal.STALENESS
        self._blocked_s = self.blocked_s(now_s)
        self._blocked_since_s = now_s if is_blocked else None
