"""Name the columns of the arrays that describe a fleet to the event loop.

The loop in `event_loop` is compiled and sees only arrays. These enumerations name their columns,
so that a fault says `Engine.SPEED` and not 2. Times are seconds from the start of the simulation.
"""

from __future__ import annotations

from enum import IntEnum, auto, unique


class _Columns(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:  # noqa: ARG004
        return count


@unique
class Table(_Columns):
    """The table that a planned change writes to."""

    ENGINE = auto()
    GATEWAY = auto()
    QUOTA = auto()
    POOL = auto()


@unique
class Engine(_Columns):
    """One replica: its scheduler's settings, what its steps cost, and the state it is in."""

    ALIVE = auto()  # 0 = the process is gone
    ROUTABLE = auto()  # whether gateways send requests there
    WEIGHT = auto()  # share of the traffic under `Policy.WEIGHTED`
    MAX_SEQS = auto()
    MAX_TOKENS = auto()  # budget of a step
    BLOCKS = auto()  # of the KV cache, `BLOCK` tokens each
    CHUNKED = auto()  # 0 = a prompt is computed in one step
    LONG_PREFILL = auto()  # most tokens of one prompt in a step; 0 = no limit of its own
    PREFIX_CACHING = auto()
    MAX_LORAS = auto()  # adapters in one batch; 0 = no limit
    MAX_QUEUED = auto()  # 503 beyond that; 0 = no limit

    BASE_S = auto()  # a step with nothing in it
    PREFILL_TOKEN_S = auto()
    ATTENTION_S = auto()  # a pair of prompt token and token before it
    SEQUENCE_S = auto()  # a sequence that decodes
    CONTEXT_S = auto()  # a token of its context
    JITTER = auto()  # standard deviation of a step's time, as a share
    SPEED = auto()  # every step takes so many times as long

    SPEC_TOKENS = auto()  # drafted a step and sequence; 0 = no speculative decoding
    DRAFT_S = auto()  # a draft token, once for the batch
    VERIFY = auto()  # a draft token costs this share of a sequence
    ACCEPTANCE = auto()  # factor on what a request's text would let through

    FRONT_REQUEST_S = auto()  # the API server's work for a request
    FRONT_PROMPT_S = auto()  # for a prompt token
    FRONT_TOKEN_S = auto()  # for an output chunk
    FRONT_PROCESSES = auto()  # API servers: work is shared among them

    KV_SHARE = auto()  # of a prompt, fetched from elsewhere before it may start
    KV_BASE_S = auto()
    KV_TOKEN_S = auto()

    PAUSED_UNTIL = auto()  # no step begins before
    ASLEEP = auto()  # 1 = and the engine says so
    STARTED = auto()
    WARM_FACTOR = auto()  # steps after the start take 1 + this many times as long,
    WARM_S = auto()  # decaying with this time constant
    COMPILE_S = auto()  # once for every size of step not seen since the start

    CLOCK = auto()  # of the GPU, as a share of the nominal one
    THROTTLED = auto()


@unique
class Gateway(_Columns):
    """One gateway: what stands between clients and engines."""

    WORKERS = auto()
    SERVICE_S = auto()  # median of its own work for a request
    SIGMA = auto()  # of its logarithm
    RETRY_AFTER_S = auto()  # what a 429 says
    ERROR_SHARE = auto()  # requests it answers with 503 for reasons of its own
    BUFFER = auto()  # chunks gathered before they are passed on; 1 = none
    IDLE_S = auto()  # a stream silent for longer is cut; 0 = never
    POLICY = auto()


@unique
class Policy(_Columns):
    """How a gateway chooses a replica."""

    MIN_LOADED = auto()
    PREFIX = auto()  # the same prefix to the same replica, unless that is overloaded
    WEIGHTED = auto()  # at random, by `Engine.WEIGHT`


@unique
class Quota(_Columns):
    """A tenant's rate limit at the gateways."""

    RATE = auto()  # requests a second; 0 = none
    BURST = auto()


@unique
class Pool(_Columns):
    """The limit of a client process."""

    SIZE = auto()  # requests at once


@unique
class Meter(_Columns):
    """What is sampled of a replica. From `FIRST_COUNTER` on: cumulative, lost at a restart."""

    RUNNING = auto()
    WAITING = auto()
    DEFERRED = auto()
    KV_USAGE = auto()
    SLEEP = auto()
    STARTED = auto()
    UP = auto()
    CLOCK = auto()
    THROTTLED = auto()
    PREFIX_HITS = auto()
    PREFIX_QUERIES = auto()
    PREEMPTIONS = auto()
    DRAFTED = auto()
    ACCEPTED = auto()
    TOKENS_IN = auto()
    TOKENS_OUT = auto()
    STOP = auto()
    LENGTH = auto()
    ABORT = auto()
    ERROR = auto()
    REJECTED = auto()
    BUSY_S = auto()  # steps ran for so long
    FRONT_BUSY_S = auto()  # the API servers worked for so long
    FRONT_S = auto()  # sum over first tokens: TTFT - queue - prefill, as the engine counts them
    FRONT_N = auto()


FIRST_COUNTER = Meter.PREFIX_HITS


@unique
class GatewayMeter(_Columns):
    """What is sampled of a gateway; cumulative."""

    TOO_MANY = auto()  # 429
    FAILED = auto()  # 5xx


@unique
class Outcome(_Columns):
    """How a request ended; `OUTCOMES` of `llmtrace.core.row` in this order."""

    SUCCESS = auto()
    ERROR = auto()
    CANCELLED = auto()
    TRUNCATED = auto()
    TIMEOUT = auto()


BLOCK = 16  # tokens in a block of the KV cache
