"""Every error a person or another role may have to answer, and the exit codes they end in.

Knows nothing of sockets, torch or configuration files.
"""

from __future__ import annotations

import enum

EXIT_OK = 0
EXIT_RUN_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class AsyncAgentRLError(Exception):
    """Root of all errors raised on purpose. The message is one sentence a person can act on."""


class InputError(AsyncAgentRLError):
    """What the person gave us is wrong: a file, a record, a folder, a port. Exit status 2."""


class ConfigError(InputError):
    """A key, a value or a combination in the configuration is wrong. Names the key and the value."""


class RunError(AsyncAgentRLError):
    """The run cannot go on: a role died, the disk is full, a broadcast is damaged. Exit status 1."""


class ProtocolError(AsyncAgentRLError):
    """A peer sent something this protocol version does not allow. Names the peer and the message."""


class EnvError(AsyncAgentRLError):
    """The environment broke, not the agent: the episode is lost, never scored 0."""


class EngineError(AsyncAgentRLError):
    """The inference engine could not answer: the episode is lost, never scored 0."""


class FailureKind(enum.StrEnum):
    """Why a lease ended without a trajectory (design, section 2). None of them is ever a reward."""

    ENVIRONMENT_ERROR = "environment_error"
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    ENGINE_ERROR = "engine_error"
    ACTOR_LOST = "actor_lost"
    CANCELLED = "cancelled"


class DropReason(enum.StrEnum):
    """Why a trajectory or a group was never trained (design, section 2)."""

    DEADLINE = "deadline"
    TOO_MANY_FAILURES = "too_many_failures"
    SIBLING_FAILED = "sibling_failed"
    TOO_STALE = "too_stale"
    FILTERED = "filtered"
    NON_FINITE_UPDATE = "non_finite_update"
    DUPLICATE = "duplicate"
    LOST_LINEAGE = "lost_lineage"
    RUN_ENDED = "run_ended"
