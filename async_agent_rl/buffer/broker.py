"""What the buffer answers to each message: the meeting point of actors, learner, groups and admission.

Knows nothing of sockets and clocks: frames and the time go in, frames for named peers come out. Everything it keeps is
bounded: groups by admission, peers by MAX_PEERS, one parked request a peer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import structlog

from async_agent_rl import protocol
from async_agent_rl.buffer.admission import Admission
from async_agent_rl.buffer.batching import BatchDesk
from async_agent_rl.buffer.groups import GroupTable
from async_agent_rl.buffer.intake import check_trajectory
from async_agent_rl.buffer.leasing import LeaseDesk
from async_agent_rl.buffer.records import Drop, GroupState, Held, Outcome
from async_agent_rl.errors import DropReason, FailureKind, ProtocolError
from async_agent_rl.protocol import Frame
from async_agent_rl.roles import RoleSpec

log = structlog.get_logger()

ACTOR_SILENCE_S = 15.0
"""An actor that sent nothing for this long has lost its leases. It beats about once a second."""
MAX_PEERS = 4096


@dataclasses.dataclass(frozen=True)
class Outgoing:
    """Frames for one peer; `peer` None means everyone, as a hint that may be lost."""

    peer: str | None
    frames: Sequence[Frame]


@dataclasses.dataclass
class Peer:
    role: protocol.Role
    last_heard_s: float
    is_lost: bool = False
    stats: protocol.ActorStats = dataclasses.field(default_factory=protocol.ActorStats)


class Broker:
    """One run's buffer. `handle` every message, `tick` often; send what they return."""

    def __init__(self, spec: RoleSpec) -> None:
        config = spec.config
        self._run_id = spec.run_id
        self._incarnation = spec.incarnation
        self._table = GroupTable(
            run_seed=config.run.seed,
            num_tasks=spec.num_train_tasks,
            group_size=config.group.size,
            max_failures=config.group.max_failures,
            deadline_s=config.group.deadline_s,
        )
        self._admission = Admission(
            groups_per_update=config.train.groups_per_update,
            max_staleness=config.effective_staleness,
            total_groups=config.total_groups,
        )
        self._leases = LeaseDesk(self._table, self._admission, slots=config.actors.slots)
        self._batches = BatchDesk(self._table, self._admission, config.buffer.order)
        self._peers: dict[str, Peer] = {}
        self._outbox: list[Outgoing] = []
        self.stop_reason: str | None = None

    @property
    def table(self) -> GroupTable:
        return self._table

    @property
    def version(self) -> int:
        """Newest published version."""
        return self._admission.version

    def handle(self, sender: str, frames: Sequence[Frame], now_s: float) -> list[Outgoing]:
        """Answer one message. A message that breaks the protocol is logged and costs at most its own lease."""
        try:
            if len(frames) > 1:
                self._on_trajectory(sender, frames, now_s)
            else:
                self._dispatch(sender, protocol.decode(frames[0] if frames else b""), now_s)
        except ProtocolError as error:
            log.error("message_refused", peer=sender, error=str(error))
        return self._settle(now_s)

    def tick(self, now_s: float, is_drained: bool = True) -> list[Outgoing]:
        """Let time pass.

        Args:
            is_drained: no message waits to be handled. Only then does silence mean anything: after a stall of this
                process the peers' messages are all there, unread.
        """
        for drop in self._table.drop_overdue(now_s):
            self._after_drop(drop)
        if is_drained:
            for name, peer in self._peers.items():
                if peer.role == "actor" and not peer.is_lost and now_s - peer.last_heard_s > ACTOR_SILENCE_S:
                    self._give_up(name, peer, f"silent for {now_s - peer.last_heard_s:.0f} s", now_s)
        self._report_waiting(now_s)
        return self._settle(now_s)

    def seconds_to_deadline(self, now_s: float) -> float:
        """Until `tick` has something to do at the latest."""
        return self._table.seconds_to_deadline(now_s)

    def undelivered(self, outgoing: Outgoing, now_s: float) -> list[Outgoing]:
        """A message could not be sent: its peer is gone, or takes nothing any more."""
        name = outgoing.peer or ""
        peer = self._peers.get(name)
        log.warning("peer_unreachable", peer=name, frames=len(outgoing.frames))
        if peer is not None and peer.role == "actor":
            message = protocol.decode(outgoing.frames[0])
            unanswered = None
            if isinstance(message, protocol.LeaseGrant):
                unanswered = protocol.LeaseRequest(capacity=len(message.leases))
            self._give_up(name, peer, "unreachable", now_s, unanswered)
        elif peer is not None and peer.role == "learner":
            self._batches.forget()  # what it missed is handed over again when it asks again
        return self._settle(now_s)

    def stop(self, reason: str, now_s: float) -> list[Outgoing]:
        """End the run: whatever lives is dropped, everyone is told. Safe to call twice."""
        if self.stop_reason is not None:
            return []
        self.stop_reason = reason
        for group in list(self._table.groups):
            self._table.drop(group.number, DropReason.RUN_ENDED, now_s)
        self._table.check_conservation()
        frame = protocol.encode(protocol.Stop(reason=reason))
        tally = self._table.tally
        log.info(
            "buffer_stopped",
            reason=reason,
            version=self.version,
            groups_issued=tally.groups_issued,
            groups_trained=tally.groups_trained,
            groups_dropped=dict(tally.groups_dropped),
            leases_failed=dict(tally.leases_failed),
            duplicates=tally.duplicates,
            late=tally.late,
        )
        everyone = [Outgoing(name, [frame]) for name, peer in self._peers.items() if not peer.is_lost]
        return [*everyone, Outgoing(None, [frame])]

    # Messages ---------------------------------------------------------------------------------------------------

    def _dispatch(self, sender: str, message: protocol.AnyMessage, now_s: float) -> None:
        if isinstance(message, protocol.Hello):
            self._on_hello(sender, message, now_s)
            return
        peer = self._known(sender, now_s)
        match message:
            case protocol.LeaseRequest() if peer.role == "actor":
                self._leases.park(sender, message)
            case protocol.LeaseFailed() if peer.role == "actor":
                self._on_lease_failed(sender, message, now_s)
            case protocol.Heartbeat() if peer.role == "actor":
                peer.stats = message.stats
                self._send(sender, protocol.VersionHint(version=self.version))
            case protocol.BatchRequest() if peer.role == "learner":
                self._on_batch_request(sender, message, now_s)
            case protocol.Trained() if peer.role == "learner":
                self._on_trained(message)
            case protocol.Dropped() if peer.role == "learner":
                self._on_dropped(message, now_s)
            case protocol.Stop() if peer.role != "actor":
                self._outbox += self.stop(message.reason, now_s)
            case protocol.TrajectoryDone():
                raise ProtocolError(f"{sender}: a trajectory came without its arrays")
            case _:
                raise ProtocolError(f"{sender}: a {type(message).__name__} is not for a {peer.role} to send")

    def _on_hello(self, sender: str, hello: protocol.Hello, now_s: float) -> None:
        refusal = None
        if hello.run_id != self._run_id:
            refusal = f"this buffer serves run {self._run_id}, not {hello.run_id}"
        elif hello.protocol != protocol.PROTOCOL_VERSION:
            refusal = f"this buffer speaks protocol {protocol.PROTOCOL_VERSION}, not {hello.protocol}"
        elif hello.name != sender:
            refusal = f"the name {hello.name} differs from the socket's identity {sender}"
        elif sender not in self._peers and len(self._peers) >= MAX_PEERS:
            refusal = f"{MAX_PEERS} peers are connected already"
        if refusal is not None:
            log.error("peer_refused", peer=sender, role=hello.role, reason=refusal)
            self._send(sender, protocol.Refused(reason=refusal))
            return
        old = self._peers.get(sender)
        if old is not None and old.role == "actor" and self._table.num_leased_to(sender):
            self._give_up(sender, old, "started anew", now_s)  # a new process knows nothing of the old one's leases
        self._leases.forget(sender)
        if hello.role == "learner":
            self._batches.forget()
        self._peers[sender] = Peer(role=hello.role, last_heard_s=now_s)
        log.info("peer_joined", peer=sender, role=hello.role)
        self._send(sender, protocol.Welcome(version=self.version, incarnation=self._incarnation))

    def _on_trajectory(self, sender: str, frames: Sequence[Frame], now_s: float) -> None:
        peer = self._known(sender, now_s)
        if peer.role != "actor":
            raise ProtocolError(f"{sender}: a trajectory is not for a {peer.role} to send")
        try:
            trajectory = protocol.read_trajectory(frames)
            check_trajectory(trajectory, newest_version=self.version, incarnation=self._incarnation)
            header = trajectory.header
            held = Held(frames=frames, oldest_version=trajectory.oldest_version)
            outcome = self._table.record_trajectory(sender, header, held)
        except ProtocolError as error:
            self._fail_damaged(sender, frames[0], error, now_s)
            return
        if outcome is not Outcome.RECORDED:
            log.warning("result_ignored", actor=sender, group=header.group, lease=header.lease_id, outcome=outcome)
        group = self._table.find(header.group)
        if outcome is Outcome.RECORDED and group is not None and group.is_complete:
            self._batches.look_again()
            log.info(
                "group_complete", group=group.number, task=group.task_index, age_s=round(now_s - group.opened_s, 3)
            )
        self._send(sender, protocol.Ack(lease_id=header.lease_id, version=self.version))

    def _fail_damaged(self, sender: str, first: Frame, error: ProtocolError, now_s: float) -> None:
        """A trajectory nobody can use ends its lease as failed, so that it is played again; it is never half read."""
        header = protocol.decode(first)  # unreadable: there is no lease to end, the group's deadline will
        if not isinstance(header, protocol.TrajectoryDone):
            raise error
        self._on_lease_failed(
            sender,
            protocol.LeaseFailed(lease_id=header.lease_id, kind=FailureKind.ENGINE_ERROR, detail=str(error)),
            now_s,
        )

    def _on_lease_failed(self, sender: str, failed: protocol.LeaseFailed, now_s: float) -> None:
        outcome, drop = self._table.record_failure(sender, failed.lease_id, failed.kind, now_s)
        log.warning(
            "lease_failed", actor=sender, lease=failed.lease_id, kind=failed.kind, detail=failed.detail, outcome=outcome
        )
        if drop is not None:
            self._after_drop(drop)
        self._send(sender, protocol.Ack(lease_id=failed.lease_id, version=self.version))

    def _on_batch_request(self, sender: str, request: protocol.BatchRequest, now_s: float) -> None:
        if request.num_groups != self._admission.groups_per_update:
            reason = f"batches have {self._admission.groups_per_update} groups in this run, not {request.num_groups}"
            self._send(sender, protocol.Refused(reason=reason))
            raise ProtocolError(f"{sender}: {reason}")
        if not self._batches.ask(sender, request.version, now_s):
            self._send(sender, protocol.VersionHint(version=self.version))  # a repeated request: we live

    def _on_trained(self, trained: protocol.Trained) -> None:
        strangers = self._batches.train(trained.version, trained.groups)
        if strangers:
            log.error("trained_unknown_groups", groups=strangers, version=trained.version)
        log.info("version_published", version=trained.version, groups=trained.groups)
        self._outbox.append(Outgoing(None, [protocol.encode(protocol.VersionHint(version=trained.version))]))

    def _on_dropped(self, dropped: protocol.Dropped, now_s: float) -> None:
        for number in dropped.groups:
            drop = self._batches.drop(number, dropped.reason, now_s)
            if drop is None:
                log.warning("drop_of_ended_group", group=number, reason=dropped.reason)
            else:
                self._after_drop(drop)

    # What follows from a change --------------------------------------------------------------------------------

    def _settle(self, now_s: float) -> list[Outgoing]:
        """Hand over what has become possible, and return everything there is to send."""
        if self.stop_reason is None:
            self._deliver(now_s)
            self._grant(now_s)
        outbox, self._outbox = self._outbox, []
        return outbox

    def _deliver(self, now_s: float) -> None:
        delivery, groups, drops = self._batches.deliver(now_s)
        for drop in drops:
            self._after_drop(drop)
        if delivery is None:
            return
        self._table.check_conservation()
        batch = protocol.Batch(
            groups=delivery.groups,
            group_size=self._table.group_size,
            stats=self._stats(now_s),
            version=delivery.version,
        )
        frames: list[Frame] = [protocol.encode(batch)]
        for group in groups:
            for held in group.held:
                frames += held.frames
        self._outbox.append(Outgoing(delivery.peer, frames))
        log.info("batch_delivered", version=batch.version, groups=batch.groups, waited_s=round(delivery.waited_s, 3))

    def _grant(self, now_s: float) -> None:
        for name, leases in self._leases.grant(now_s).items():
            self._send(name, protocol.LeaseGrant(leases=leases, version=self.version))

    def _stats(self, now_s: float) -> protocol.BufferStats:
        tally = self._table.tally
        return protocol.BufferStats(
            groups_ready=self._table.count(GroupState.COMPLETE),
            groups_in_flight=self._table.count(GroupState.OPEN),
            groups_issued=tally.groups_issued,
            groups_dropped={str(reason): count for reason, count in tally.groups_dropped.items()},
            leases_failed={str(kind): count for kind, count in tally.leases_failed.items()},
            duplicates=tally.duplicates,
            admission_blocked_s=self._leases.blocked_s(now_s),
            actors={name: peer.stats for name, peer in self._peers.items() if peer.role == "actor"},
        )

    def _give_up(
        self, name: str, peer: Peer, cause: str, now_s: float, unanswered: protocol.LeaseRequest | None = None
    ) -> None:
        peer.is_lost = True
        self._leases.suspend(name, unanswered)
        num_leases, drops = self._table.give_up_actor(name, now_s)
        log.warning("actor_lost", actor=name, cause=cause, leases=num_leases)
        for drop in drops:
            self._after_drop(drop)

    def _after_drop(self, drop: Drop) -> None:
        self._batches.look_again()  # the next group moves up
        log.warning(
            "group_dropped",
            group=drop.number,
            task=drop.task_index,
            reason=drop.reason,
            age_s=round(drop.age_s, 3),
            members_in=drop.num_held,
        )

    def _report_waiting(self, now_s: float) -> None:
        wait = self._batches.long_wait(now_s)
        if wait is None:
            return
        parked, group = wait
        log.warning(
            "learner_waits",
            waited_s=round(now_s - parked.since_s, 1),
            version=parked.version,
            group=None if group is None else group.number,
            members_in=None if group is None else len(group.held),
            members_unleased=None if group is None else group.num_waiting,
            leased_to=None if group is None else self._table.actors_of(group),
            groups_live=self._table.num_live,
            actors=[name for name, peer in self._peers.items() if peer.role == "actor" and not peer.is_lost],
        )

    def _known(self, sender: str, now_s: float) -> Peer:
        peer = self._peers.get(sender)
        if peer is None:
            self._send(sender, protocol.Refused(reason="say Hello first"))
            raise ProtocolError(f"{sender}: spoke before its Hello")
        peer.last_heard_s = now_s
        if peer.is_lost:
            peer.is_lost = False
            self._leases.resume(sender)
            log.info("actor_back", actor=sender)
        return peer

    def _send(self, peer: str, message: protocol.AnyMessage) -> None:
        self._outbox.append(Outgoing(peer, [protocol.encode(message)]))
