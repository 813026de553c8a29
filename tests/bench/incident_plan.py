"""What is recorded of a real vLLM: loads, what goes wrong, and what then is the truth.

A plan alone: `record_incidents` plays it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked and how it is read; lengths are shares of those of the trace.

    Attributes:
        rate: requests a second, on average.
        shared: tokens at the front of every prompt that are the same.
        stamped: whether the time stands before them, so that none are.
        starts: there are so many such fronts, one for each of so many assistants; 0 = one.
        tools: so many descriptions of tools stand before all of it ...
        shuffled: ... in another order each time.
        passages: so many tokens of its own stand behind each prompt.
        growth: each second, prompts have this share of their first length more.
        long_share: of requests have a prompt of `long` tokens.
        thinks_share: of answers have so many tokens more, `thinks`.
        known: so many questions are asked again and again, to the letter ...
        known_share: ... by this share of requests.
        salted: every prompt carries the salt of one of so many users, 0 = none; the engine
            shares no start of a prompt between salts.
        repeat: whether a prompt repeats a word of its own, as n-gram drafts like it.
        heated: the share of requests that have a temperature of 1.2 instead.
        form: answers have to fit a JSON schema, the "same" one or a "new" one, or a "code" of
            the same kind or, as "new code", of another one, or a "query" or "new query" ...
        form_every: ... after so many requests.
        seeded: the share of requests that carry a seed.
        penalty: for what was said already, of its frequency.
        hold_s: the application's own time for a chunk.
        render_s: ... and for every chunk before it, all of which it formats again.
        checks_s: ... and once more after every 20 chunks, which it has checked.
        keep_s: ... and after the last one, while the response is still open.
        block_s: for so long it blocks its event loop, once a response.
        saves_s: ... and again, once the response was closed.
        count_s: ... and before each request.
        stall_s: for so long something else of it does, every 2 s on average.
        leak_share: of responses are read to the third chunk and then kept open for 10 s.
        give_up_s: without a first chunk until then, the reader leaves.
        leave_s: so long after the response began, the reader leaves what is not complete.
        overtaken: the share of requests that end the one before, if that is still open.
        stop_after: so many chunks, the reader leaves; 0 = never.
        again: the share of answers after which something is asked again at once.
        kept: whether connections are kept for the next request.
        fresh: whether each request has a client of its own, as in a process of its own.
        fetches: so many documents are read all the time from a slow store, over connections of
            the same pool.
        tool_s: each request is an agent's turn: one to plan, three tools that take so long, and
            one for the answer ...
        serial: ... one tool after the other instead of all at once.
        copies: so many requests come at once, each time.
        streamed: the share of responses that are streamed.
        models: whom is asked, by turns at random.
    """

    rate: float = 3.0
    prompt: float = 0.3
    output: float = 0.12
    shared: int = 0
    stamped: bool = False
    starts: int = 0
    tools: int = 0
    shuffled: bool = False
    passages: int = 0
    growth: float = 0.0
    long_share: float = 0.0
    long: int = 0
    thinks_share: float = 0.0
    thinks: int = 0
    known: int = 0
    known_share: float = 0.0
    salted: int = 0
    repeat: bool = False
    temperature: float = 1.0
    heated: float = 0.0
    form: str = ""
    form_every: int = 1
    seeded: float = 0.0
    penalty: float = 0.0
    hold_s: float = 0.0
    render_s: float = 0.0
    checks_s: float = 0.0
    keep_s: float = 0.0
    block_s: float = 0.0
    saves_s: float = 0.0
    count_s: float = 0.0
    stall_s: float = 0.0
    leak_share: float = 0.0
    give_up_s: float | None = None
    leave_s: float | None = None
    stop_after: int = 0
    overtaken: float = 0.0
    again: float = 0.0
    kept: bool = True
    fresh: bool = False
    fetches: int = 0
    tool_s: float = 0.0
    serial: bool = False
    copies: int = 1
    connections: int = 64
    retries: int = 2
    streamed: float = 1.0
    models: tuple[str, ...] = ("tiny",)


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What a step is as a case.

    Attributes:
        causes: the true ones; none = a control.
        metric: what one would have been paged for.
        severity: as planned; that of a metric which moved is measured instead.
        what: what was done, for people.
        accept: causes that this one brings about by itself, so that naming them is no error.
        shift: whether nothing is broken, and only what is asked differs.
        quiet: whether nothing is done at all.
        over: whether the quiet after it is recorded too.
        events: seconds after the onset, kind and text of what a deploy log would say.
    """

    name: str
    causes: tuple[str, ...]
    metric: str | None
    severity: str
    what: str
    accept: tuple[str, ...] = ()
    shift: bool = False
    quiet: bool = False
    over: bool = False
    events: tuple[tuple[float, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of a timeline: a load, what is wrong meanwhile, and the case it becomes.

    Attributes:
        act: one of `incident_sites.ACTS`, with its `value`.
        flags: the engine is started again with these first, while nothing is asked.
        facts: what is known of the engine from then on.
    """

    load: Load
    seconds: float = 22.0
    act: str = ""
    value: float = 0.0
    flags: tuple[str, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    incident: Incident | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """One engine or two behind HAProxy, what stands before them, and their timeline.

    Attributes:
        adapters: served beside the model, one of them at a time.
        hosted: whether nothing is known of the engine but what it answers.
        quota: the share of a core that each engine gets, as if it were on a machine of its own.
    """

    name: str
    flags: tuple[str, ...]
    steps: tuple[Step, ...]
    path: str = "direct"
    facts: dict[str, Any] = field(default_factory=dict)
    scrape_s: float = 2.0
    replicas: int = 1
    adapters: tuple[str, ...] = ()
    quota: float | None = None
    hosted: bool = False


SEATS: Final = ("--max-num-seqs", "16")
_CHAT: Final = Load()
_FEW: Final = Load(rate=1.7, prompt=0.4, output=0.2)
_SHARED: Final = Load(rate=2.0, prompt=0.15, shared=1400)
_PROXIED: Final = Load(rate=2.6, output=0.18)
_ROOMY: Final = Load(rate=1.8, prompt=0.3, output=0.25)
_LOOPING: Final = Load(rate=1.6, output=0.35, temperature=0.0, repeat=True)


def _timeline(usual: Load, *steps: Step) -> tuple[Step, ...]:
    """Return steps with a quiet one of the usual load before incidents, unless one is there."""
    found = list[Step]()
    for step in steps:
        last = found[-1].incident if found else None
        if step.incident is not None and (last is None or not last.quiet):
            found.append(Step(load=usual))
        found.append(step)
    return tuple(found)


def _chat() -> Group:
    return Group(name="chat", flags=SEATS, steps=_timeline(_CHAT,
        Step(load=replace(_CHAT, output=0.24), incident=Incident(
            name="longer-answers-mild", causes=("longer_outputs",), metric="e2e", severity="mild",
            what="answers twice as long", accept=("batch_size",), shift=True, over=True)),
        Step(load=replace(_CHAT, hold_s=0.03), incident=Incident(
            name="late-reader", causes=("slow_renderer",), metric="e2e", severity="medium",
            what="the application takes 30 ms for each chunk", over=True)),
        Step(load=_CHAT, act="pauses", value=1.2, incident=Incident(
            name="short-pauses", causes=("engine_paused",), metric="ttft", severity="medium",
            what="the engine's process is stopped for 1.2 s every 6 s")),
    ))  # fmt: skip


def _few() -> Group:
    return Group(name="few", flags=SEATS, scrape_s=5.0, steps=_timeline(_FEW,
        Step(load=_FEW, incident=Incident(
            name="quiet-deploy", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing but a deploy that changed nothing",
            events=((0.0, "deploy", "web front end 412"),))),
        Step(load=replace(_FEW, prompt=1.2), incident=Incident(
            name="long-prompts-few", causes=("long_prompts",), metric="ttft", severity="medium",
            what="prompts three times as long", shift=True, over=True)),
        Step(load=_FEW, act="round trip", value=0.12, incident=Incident(
            name="round-trip-few", causes=("network_path",), metric="ttft", severity="medium",
            what="a round trip takes 120 ms", over=True)),
        Step(load=_FEW, act="gathers", incident=Incident(
            name="nginx-compresses-few", causes=("proxy_buffering",), metric="ttft",
            severity="severe", what="an nginx that compresses and buffers is put in between",
            events=((0.0, "config", "edge proxy before the engine"),))),
    ))  # fmt: skip


def _prefix() -> Group:
    return Group(name="prefix", flags=SEATS, steps=_timeline(_SHARED,
        Step(load=replace(_SHARED, stamped=True), incident=Incident(
            name="prefix-lost-few", causes=("prefix_cache_collapse",), metric="ttft",
            severity="severe", what="the time stands before the shared start of 1,400 tokens",
            over=True, events=((0.0, "deploy", "prompt template 7"),))),
        Step(load=replace(_SHARED, connections=1), incident=Incident(
            name="pool-of-one", causes=("client_gate",), metric="e2e", severity="mild",
            what="the client has one connection for all requests", over=True)),
        Step(load=replace(_SHARED, rate=4.4), incident=Incident(
            name="surge", causes=("traffic_surge",), metric="ttft", severity="medium",
            what="2.2 times as many requests",
            accept=("batch_size", "queue_saturation"))),
    ))  # fmt: skip


def _seats() -> Group:
    few = replace(_CHAT, rate=2.4, output=0.25)
    return Group(name="seats", flags=SEATS, steps=(
        Step(load=few),
        Step(load=few, flags=("--max-num-seqs", "1"), facts={"max_num_seqs": 1}, incident=Incident(
            name="seats-lowered", causes=("queue_saturation",), metric="ttft", severity="medium",
            what="started again with --max-num-seqs 1, the load as before",
            events=((-4.0, "config", "--max-num-seqs 1"),))),
        Step(load=replace(few, rate=1.2), facts={"max_num_seqs": 1}),
        Step(load=replace(few, rate=1.2, output=0.6), facts={"max_num_seqs": 1}, incident=Incident(
            name="longer-answers-queue", causes=("longer_outputs", "queue_saturation"),
            metric="ttft", severity="severe", shift=True,
            what="answers more than twice as long where one request is served at a time")),
    ))  # fmt: skip


def _nginx() -> Group:
    return Group(name="nginx", flags=SEATS, path="nginx", steps=_timeline(_PROXIED,
        Step(load=_PROXIED, act="workers die", value=4.0, incident=Incident(
            name="nginx-workers-killed", causes=("midstream_errors",), metric=None,
            severity="medium", what="nginx's worker is killed every 4 s", over=True)),
        Step(load=_PROXIED, act="impatient", value=1.8, incident=Incident(
            name="impatient-proxy", causes=("engine_paused", "idle_timeout"), metric=None,
            severity="medium", accept=("midstream_errors",),
            what="the engine is stopped for 1.8 s every 7 s before an nginx that waits 1.08 s")),
    ))  # fmt: skip


def _envoy() -> Group:
    return Group(name="envoy", flags=SEATS, path="envoy", steps=_timeline(_PROXIED,
        Step(load=_PROXIED, act="delays", value=0.15, incident=Incident(
            name="envoy-delays-mild", causes=("gateway_overhead",), metric="ttft",
            severity="mild", what="an Envoy filter holds 60 % of requests for 150 ms", over=True)),
        Step(load=replace(_PROXIED, retries=4), act="limits", value=0.6, incident=Incident(
            name="envoy-limits", causes=("rate_limit_retries",), metric="ttft", severity="severe",
            what="Envoy answers 429 to what is over 1.7 requests a second")),
    ))  # fmt: skip


def _cache() -> Group:
    blocks = 17  # of 128 tokens, one of them never used
    tokens = 128 * (blocks - 1)
    return Group(
        name="cache", scrape_s=3.0,
        flags=(*SEATS, "--max-model-len", str(tokens), "--num-gpu-blocks-override", str(blocks)),
        facts={"max_model_len": tokens, "kv_cache_tokens": tokens},
        steps=_timeline(_ROOMY,
            Step(load=replace(_ROOMY, rate=4.2), incident=Incident(
                name="cache-full-surge", causes=("kv_exhaustion",), metric="ttft",
                severity="severe", accept=("traffic_surge",), over=True,
                what="2.3 times as many requests on a cache of 2,048 tokens")),
            Step(load=replace(_ROOMY, output=0.9), incident=Incident(
                name="cache-full-answers", causes=("kv_exhaustion",), metric="e2e",
                severity="medium", accept=("longer_outputs",), over=True,
                what="answers 3.6 times as long on a cache of 2,048 tokens")),
            Step(load=replace(_ROOMY, retries=3), act="refuses", value=1.6, incident=Incident(
                name="nginx-refuses-few", causes=("rate_limit_retries",), metric="ttft",
                severity="mild", what="nginx answers 429 to what is over 1.6 requests a second")),
        ))  # fmt: skip


def _cpu() -> Group:
    return Group(name="cpu", flags=SEATS, steps=_timeline(_CHAT,
        Step(load=_CHAT, act="frontend cpu", value=4.0, incident=Incident(
            name="frontend-short", causes=("frontend_cpu",), metric="ttft", severity="medium",
            what="another program takes most of the API server's CPU", over=True)),
        Step(load=_CHAT, act="engine cpu", value=3.0, incident=Incident(
            name="engine-short", causes=(), metric="tpot", severity="medium",
            what="another program takes most of the engine's CPU: none of the causes", over=True)),
        Step(load=replace(_CHAT, block_s=0.15), incident=Incident(
            name="loop-blocked", causes=("busy_client",), metric="ttft", severity="medium",
            what="the application blocks its event loop for 150 ms a response")),
    ))  # fmt: skip


def _restart() -> Group:
    load = replace(_FEW, rate=2.0)
    return Group(name="restart", flags=SEATS, path="haproxy", steps=_timeline(load,
        Step(load=load, seconds=50, act="restarts", incident=Incident(
            name="restart-held", causes=("cold_start",), metric="ttft", severity="severe",
            accept=("engine_down",), events=((0.0, "deploy", "new image"),), over=True,
            what="the engine is restarted; HAProxy holds the requests until it accepts them")),
        Step(load=load, seconds=25, act="dies", value=2.0, incident=Incident(
            name="engine-killed-few", causes=("engine_down",), metric=None, severity="severe",
            what="the engine's process is killed and stays down")),
    ))  # fmt: skip


def _drafts() -> Group:
    ngram = ('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, '
             '"prompt_lookup_min": 2}')  # fmt: skip
    flags = (*SEATS, "--speculative-config", ngram)
    return Group(name="drafts", flags=flags, facts={"spec_decode": True}, steps=_timeline(_LOOPING,
        Step(load=replace(_LOOPING, temperature=1.2), incident=Incident(
            name="drafts-refused-few", causes=("low_spec_acceptance",), metric="tpot",
            severity="medium", what="a temperature of 1.2 at which drafts do not fit", over=True)),
        Step(load=replace(_LOOPING, give_up_s=0.08), incident=Incident(
            name="give-ups-few", causes=("client_give_ups",), metric=None, severity="medium",
            what="readers leave without a first chunk after 80 ms", over=True)),
        Step(load=_LOOPING, incident=Incident(
            name="quiet-plain", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing")),
    ))  # fmt: skip


def _whole() -> Group:
    flags = ("--max-model-len", "8192", "--max-num-batched-tokens", "8192",
             "--no-enable-chunked-prefill")  # fmt: skip
    facts = {"chunked_prefill": False, "max_num_batched_tokens": 8192, "max_model_len": 8192,
             "max_num_seqs": 256}  # fmt: skip
    load = replace(_CHAT, rate=2.0)
    return Group(name="whole", flags=flags, facts=facts, steps=_timeline(load,
        Step(load=replace(load, long_share=0.08, long=6400), incident=Incident(
            name="long-ones-few", causes=("head_of_line",), metric="ttft", severity="severe",
            what="8 % of prompts have 6,400 tokens, prefilled whole", accept=("long_prompts",),
            over=True)),
        Step(load=replace(load, streamed=0.0), incident=Incident(
            name="streaming-off", causes=("streaming_off",), metric="ttft", severity="severe",
            what="a release of the application that does not stream",
            events=((0.0, "deploy", "web front end 413"),), over=True)),
        Step(load=replace(load, rate=0.35), incident=Incident(
            name="traffic-gone", causes=("traffic_lost",), metric=None, severity="severe",
            what="five of six requests are not sent any more")),
    ))  # fmt: skip


# --- a second set: other loads, longer steps ----------------------------------------------------

_LONG_S: Final = 40.0
_LONGER_S: Final = 60.0
_TALK: Final = Load(rate=2.2, prompt=0.5, output=0.15)
_RAG: Final = Load(rate=2.4, prompt=0.2, output=0.1, shared=900)
_TIGHT: Final = Load(rate=1.6, prompt=0.35, output=0.3)


def _stretched(group: Group, to_s: float) -> Group:
    """Return a group whose steps last at least so long."""
    steps = tuple(replace(step, seconds=max(step.seconds, to_s)) for step in group.steps)
    return replace(group, steps=steps)


def _app() -> Group:
    return Group(name="app", flags=SEATS, steps=_timeline(_TALK,
        Step(load=replace(_TALK, output=0.26), incident=Incident(
            name="longer-answers-app", causes=("longer_outputs",), metric="e2e", severity="mild",
            what="answers 1.7 times as long", accept=("batch_size",), shift=True, over=True)),
        Step(load=_TALK, incident=Incident(
            name="quiet-scaled", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing but a deploy of something else",
            events=((0.0, "deploy", "billing service 98"),))),
        Step(load=replace(_TALK, block_s=0.09), incident=Incident(
            name="loop-blocked-app", causes=("busy_client",), metric="e2e", severity="mild",
            what="the application blocks its event loop for 90 ms a response", over=True)),
        Step(load=replace(_TALK, hold_s=0.02), incident=Incident(
            name="late-reader-app", causes=("slow_renderer",), metric="e2e", severity="mild",
            what="the application takes 20 ms for each chunk")),
    ))  # fmt: skip


def _balanced() -> Group:
    return Group(name="balanced", flags=SEATS, path="haproxy", scrape_s=5.0, steps=_timeline(_TALK,
        Step(load=_TALK, act="pauses", value=2.5, incident=Incident(
            name="long-pauses", causes=("engine_paused",), metric="ttft", severity="severe",
            what="the engine's process is stopped for 2.5 s every 7.5 s", over=True)),
        Step(load=_TALK, act="round trip", value=0.06, incident=Incident(
            name="round-trip-mild", causes=("network_path",), metric="ttft", severity="mild",
            what="a round trip takes 60 ms", over=True)),
        Step(load=replace(_TALK, prompt=1.1), incident=Incident(
            name="long-prompts-balanced", causes=("long_prompts",), metric="ttft",
            severity="medium", what="prompts more than twice as long", shift=True)),
    ))  # fmt: skip


def _edge() -> Group:
    return Group(name="edge", flags=SEATS, path="envoy", steps=_timeline(_TALK,
        Step(load=_TALK, act="delays", value=0.4, incident=Incident(
            name="envoy-delays", causes=("gateway_overhead",), metric="ttft", severity="medium",
            what="an Envoy filter holds 60 % of requests for 400 ms", over=True,
            events=((0.0, "config", "Envoy filter chain 12"),))),
        Step(load=_TALK, act="gathers", incident=Incident(
            name="nginx-compresses", causes=("proxy_buffering",), metric="ttft",
            severity="severe", what="an nginx that compresses and buffers is put in between",
            over=True)),
        Step(load=replace(_TALK, retries=3), act="refuses", value=1.3, incident=Incident(
            name="nginx-refuses", causes=("rate_limit_retries",), metric="ttft",
            severity="medium", what="nginx answers 429 to what is over 1.3 requests a second")),
    ))  # fmt: skip


def _cut() -> Group:
    return Group(name="cut", flags=SEATS, path="nginx", steps=_timeline(_TALK,
        Step(load=_TALK, act="workers die", value=6.0, incident=Incident(
            name="nginx-workers-killed-again", causes=("midstream_errors",), metric=None,
            severity="medium", what="nginx's worker is killed every 6 s", over=True)),
        Step(load=_TALK, act="frontend cpu", value=5.0, incident=Incident(
            name="frontend-behind-nginx", causes=("frontend_cpu",), metric="ttft",
            severity="medium", what="another program takes most of the API server's CPU",
            over=True)),
        Step(load=replace(_TALK, give_up_s=0.25), incident=Incident(
            name="give-ups-nginx", causes=("client_give_ups",), metric=None, severity="medium",
            what="readers leave without a first chunk after 250 ms")),
    ))  # fmt: skip


def _rag() -> Group:
    return Group(name="rag", flags=SEATS, steps=_timeline(_RAG,
        Step(load=replace(_RAG, stamped=True), incident=Incident(
            name="prefix-lost-rag", causes=("prefix_cache_collapse",), metric="ttft",
            severity="medium", what="the time stands before the shared start of 900 tokens",
            over=True)),
        Step(load=replace(_RAG, rate=4.6), incident=Incident(
            name="surge-rag", causes=("traffic_surge",), metric="ttft", severity="medium",
            what="1.9 times as many requests", over=True,
            accept=("batch_size", "queue_saturation"))),
        Step(load=replace(_RAG, connections=2), incident=Incident(
            name="pool-of-two", causes=("client_gate",), metric="e2e", severity="mild",
            what="the client has two connections for all requests")),
    ))  # fmt: skip


def _tight() -> Group:
    blocks = 21  # of 128 tokens, one of them never used
    tokens = 128 * (blocks - 1)
    return Group(
        name="tight",
        flags=(*SEATS, "--max-model-len", str(tokens), "--num-gpu-blocks-override", str(blocks)),
        facts={"max_model_len": tokens, "kv_cache_tokens": tokens},
        steps=_timeline(_TIGHT,
            Step(load=replace(_TIGHT, output=1.0), incident=Incident(
                name="cache-tight-answers", causes=("kv_exhaustion",), metric="e2e",
                severity="medium", accept=("longer_outputs",), over=True,
                what="answers 3.3 times as long on a cache of 2,560 tokens")),
            Step(load=_TIGHT, incident=Incident(
                name="quiet-tight", causes=(), metric="ttft", severity="none", quiet=True,
                what="nothing")),
        ))  # fmt: skip


# --- a third set: proxies before other engines, other events, new kinds of fault -----------------

_THIRD_S: Final = {"voice": 40.0, "region": 65.0, "fleet": 50.0, "cached": 45.0, "auth": 50.0,
                          "adapters": 50.0, "manual": 45.0, "lines": 40.0, "canary": 45.0,
                          "window": 40.0, "patience": 45.0,
                          "slots": 45.0, "bursts": 40.0}  # fmt: skip
_VOICE: Final = Load(rate=4.5, prompt=0.15, output=0.06)
_REPORTS: Final = Load(rate=1.3, prompt=0.5, output=0.3)
_FAQ: Final = Load(rate=3.2, prompt=0.3, output=0.2, known=12, known_share=0.9)
_AGENT: Final = Load(rate=2.1, prompt=0.3, output=0.2, long_share=0.12, long=3000)
_ADAPTERS: Final = ("legal", "retail", "travel")
_ADAPTED: Final = Load(rate=1.6, prompt=0.25, output=0.08, models=("legal",))
_MANUAL: Final = Load(rate=2.2, prompt=0.2, output=0.12, shared=1000)
_WHOLE: Final = Load(rate=2.6, prompt=0.25, output=0.1)
_CODER: Final = Load(rate=1.4, output=0.3, temperature=0.0, repeat=True)
_WINDOW: Final = Load(rate=3.2, prompt=0.2, output=0.4)
_BURSTS: Final = Load(rate=2.0, prompt=0.03, output=0.08)  # of a trace with longer ones
_SPREAD: Final = Load(rate=1.4, prompt=0.2, output=0.22)


def _voice() -> Group:
    return Group(name="voice", flags=SEATS, path="nginx", scrape_s=1.0, steps=_timeline(_VOICE,
        Step(load=_VOICE, act="pauses", value=0.7, incident=Incident(
            name="pauses-brief", causes=("engine_paused",), metric="ttft", severity="mild",
            what="the engine's process is stopped for 0.7 s every 5.7 s, behind nginx",
            over=True)),
        Step(load=_VOICE, incident=Incident(
            name="quiet-more-pods", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing but more pods of another service",
            events=((2.0, "scale", "catalogue search 3 -> 6 pods"),))),
        Step(load=replace(_VOICE, block_s=0.12), incident=Incident(
            name="loop-blocked-voice", causes=("busy_client",), metric="ttft", severity="medium",
            what="the application blocks its event loop for 120 ms a response", over=True,
            events=((-3.0, "deploy", "voice front end 57"),))),
        Step(load=replace(_VOICE, rate=1.5), incident=Incident(
            name="traffic-thinned", causes=("traffic_lost",), metric=None, severity="medium",
            what="two of three requests are not sent any more", over=True)),
        Step(load=_VOICE),
    ))  # fmt: skip


def _region() -> Group:
    return Group(name="region", flags=SEATS, path="envoy", scrape_s=8.0, steps=_timeline(_REPORTS,
        Step(load=_REPORTS, act="far", value=0.09, incident=Incident(
            name="moved-region", causes=("network_path",), metric="ttft", severity="medium",
            what="a round trip from the application to Envoy takes 90 ms", over=True,
            events=((-1.0, "deploy", "reports 2.31 in another region"),))),
        Step(load=_REPORTS, act="cuts off", value=0.5, incident=Incident(
            name="route-timeout", causes=("midstream_errors",), metric=None, severity="medium",
            what="Envoy's route stops every response after 0.5 s, and hangs up a second later",
            accept=("idle_timeout",), over=True,
            events=((0.0, "config", "Envoy routes 88"),))),
        Step(load=replace(_REPORTS, long_share=0.35, long=1500), incident=Incident(
            name="documents", causes=("long_prompts",), metric="ttft", severity="mild", shift=True,
            what="a third of requests carry a document of 1,500 tokens")),
    ))  # fmt: skip


def _fleet() -> Group:
    return Group(name="fleet", flags=("--max-num-seqs", "1"), path="haproxy", scrape_s=5.0,
                 replicas=2, facts={"max_num_seqs": 1}, steps=_timeline(_SPREAD,
        Step(load=_SPREAD, act="leans", value=19.0, incident=Incident(
            name="balancer-leans", causes=("replica_imbalance",), metric="ttft",
            severity="medium", accept=("queue_saturation",), over=True,
            what="HAProxy sends 19 of 20 requests to the first of two engines",
            events=((0.0, "config", "weights of the balancer"),))),
        Step(load=_SPREAD, act="pauses", value=1.8, incident=Incident(
            name="one-of-two-pauses", causes=("engine_paused",), metric="ttft",
            severity="severe", over=True,
            what="the first of two engines is stopped for 1.8 s every 6.8 s")),
        Step(load=_SPREAD, act="dies", value=3.0, incident=Incident(
            name="one-of-two-killed", causes=("engine_down",), metric=None, severity="severe",
            what="the first of two engines is killed and stays down; HAProxy does not notice")),
    ))  # fmt: skip


def _cached() -> Group:
    return Group(name="cached", flags=SEATS, path="cache", scrape_s=3.0, steps=_timeline(_FAQ,
        Step(load=_FAQ, act="misses", incident=Incident(
            name="answers-not-found", causes=("response_cache_misses",), metric="e2e",
            severity="medium", accept=("batch_size",), over=True,
            what="the key of an nginx that keeps responses holds the time, so that none is found",
            events=((0.0, "deploy", "answer cache 1.9"),))),
        Step(load=_FAQ, act="reloads", value=1.0, incident=Incident(
            name="quiet-reload", causes=(), metric="e2e", severity="none", quiet=True,
            what="nginx reads its configuration again, in which nothing has changed",
            events=((1.0, "config", "certificate of the answer cache"),))),
        Step(load=replace(_FAQ, hold_s=0.012), incident=Incident(
            name="late-reader-cached", causes=("slow_renderer",), metric="e2e", severity="medium",
            what="the application takes 12 ms for each chunk", over=True)),
        Step(load=_FAQ),
    ))  # fmt: skip


def _auth() -> Group:
    return Group(name="auth", flags=SEATS, path="nginx", scrape_s=10.0, steps=_timeline(_AGENT,
        Step(load=_AGENT, act="asks first", value=0.2, incident=Incident(
            name="slow-authorisation", causes=("gateway_overhead",), metric="ttft",
            severity="medium", over=True,
            what="nginx asks a service that takes 200 ms whether a request may pass")),
        Step(load=_AGENT, act="workers die", value=9.0, incident=Incident(
            name="nginx-workers-killed-rarely", causes=("midstream_errors",), metric=None,
            severity="mild", what="nginx's worker is killed every 9 s")),
    ))  # fmt: skip


def _patience() -> Group:
    return Group(name="patience", flags=SEATS, scrape_s=2.0, steps=_timeline(_AGENT,
        Step(load=_AGENT, act="loses patience", value=0.15, incident=Incident(
            name="no-patience", causes=("idle_timeout",), metric=None, severity="medium",
            what="a HAProxy ends what is silent for 150 ms; prompts of 3,000 tokens take longer",
            events=((-2.0, "config", "edge proxy time-outs"),))),
    ))  # fmt: skip


def _adapters() -> Group:
    return Group(name="adapters", flags=SEATS, adapters=_ADAPTERS, scrape_s=4.0,
                 steps=_timeline(_ADAPTED,
        Step(load=_ADAPTED, act="round trip", value=0.03, incident=Incident(
            name="round-trip-adapters", causes=("network_path",), metric="ttft", severity="mild",
            what="a round trip takes 30 ms", over=True)),
        Step(load=replace(_ADAPTED, output=0.2), incident=Incident(
            name="longer-answers-adapters", causes=("longer_outputs",), metric="e2e",
            severity="medium", what="answers 2.5 times as long", accept=("batch_size",),
            shift=True)),
    ))  # fmt: skip


def _slots() -> Group:
    load = replace(_ADAPTED, rate=3.2, prompt=0.15, output=0.18)
    return Group(name="slots", flags=SEATS, adapters=_ADAPTERS, scrape_s=2.0, steps=_timeline(load,
        Step(load=replace(load, models=_ADAPTERS), incident=Incident(
            name="three-adapters", causes=("lora_slots",), metric="ttft", severity="severe",
            what="three adapters are asked for, of which one fits at a time",
            events=((-6.0, "deploy", "assistants for two more departments"),))),
    ))  # fmt: skip


def _manual() -> Group:
    no_caching = (*SEATS, "--no-enable-prefix-caching")
    return Group(name="manual", flags=SEATS, path="envoy", scrape_s=6.0, steps=_timeline(_MANUAL,
        Step(load=replace(_MANUAL, stamped=True), act="delays", value=0.25, incident=Incident(
            name="delays-and-stamps", causes=("gateway_overhead", "prefix_cache_collapse"),
            metric="ttft", severity="severe", over=True,
            what="an Envoy filter holds 60 % of requests for 250 ms, and the time stands before "
                 "the shared start of 1,000 tokens",
            events=((0.0, "deploy", "gateway and prompts 4.0"),))),
        Step(load=replace(_MANUAL, retries=3), act="limits", value=0.7, incident=Incident(
            name="envoy-limits-manual", causes=("rate_limit_retries",), metric="ttft",
            severity="severe", over=True,
            what="Envoy answers 429 to what is over 1.4 requests a second")),
        Step(load=_MANUAL, flags=no_caching, facts={"prefix_caching": False}, incident=Incident(
            name="prefix-caching-off", causes=("prefix_cache_collapse",), metric="ttft",
            severity="medium", what="started again with --no-enable-prefix-caching",
            events=((-30.0, "config", "engine flags of the nightly test"),))),
    ))  # fmt: skip


def _lines() -> Group:
    flags = ("--max-model-len", "8192", "--max-num-batched-tokens", "8192",
             "--no-enable-chunked-prefill")  # fmt: skip
    facts = {"chunked_prefill": False, "max_num_batched_tokens": 8192, "max_model_len": 8192,
             "max_num_seqs": 256}  # fmt: skip
    return Group(name="lines", flags=flags, facts=facts, scrape_s=3.0, steps=_timeline(_WHOLE,
        Step(load=replace(_WHOLE, long_share=0.05, long=4500), incident=Incident(
            name="long-ones-rare", causes=("head_of_line",), metric="ttft", severity="medium",
            what="5 % of prompts have 4,500 tokens, prefilled whole", accept=("long_prompts",),
            over=True)),
        Step(load=replace(_WHOLE, streamed=0.5), incident=Incident(
            name="streaming-off-for-half", causes=("streaming_off",), metric="ttft",
            severity="medium", what="half of the application's pods do not stream",
            events=((-1.0, "deploy", "chat widget 7, to half of the pods"),), over=True)),
        Step(load=replace(_WHOLE, rate=5.0), incident=Incident(
            name="surge-lines", causes=("traffic_surge",), metric="ttft", severity="mild",
            what="1.9 times as many requests", accept=("batch_size", "queue_saturation"))),
    ))  # fmt: skip


def _canary() -> Group:
    ngram = ('{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, '
             '"prompt_lookup_min": 2}')  # fmt: skip
    return Group(name="canary", flags=(*SEATS, "--speculative-config", ngram), path="haproxy",
                 facts={"spec_decode": True}, scrape_s=7.0, steps=_timeline(_CODER,
        Step(load=replace(_CODER, temperature=0.9), incident=Incident(
            name="drafts-refused-canary", causes=("low_spec_acceptance",), metric="tpot",
            severity="mild", what="a temperature of 0.9 at which fewer drafts fit", over=True)),
        Step(load=_CODER, incident=Incident(
            name="quiet-canary", causes=(), metric="tpot", severity="none", quiet=True,
            what="nothing but a deploy and a configuration that changed nothing",
            events=((-2.0, "deploy", "code search 19"), (9.0, "config", "level of the logs")))),
        Step(load=_CODER, act="frontend cpu", value=6.0, incident=Incident(
            name="frontend-canary", causes=("frontend_cpu",), metric="ttft", severity="medium",
            what="another program takes most of the API server's CPU, behind HAProxy", over=True)),
        Step(load=replace(_CODER, give_up_s=0.07), incident=Incident(
            name="give-ups-canary", causes=("client_give_ups",), metric=None, severity="medium",
            what="readers leave without a first chunk after 70 ms",
            events=((-20.0, "deploy", "code search 20"),))),
    ))  # fmt: skip


def _window() -> Group:
    seats = {"max_num_seqs": 2}
    return Group(name="window", flags=SEATS, scrape_s=2.0, steps=_timeline(_WINDOW,
        Step(load=_WINDOW, act="gathers", incident=Incident(
            name="nginx-compresses-window", causes=("proxy_buffering",), metric="ttft",
            severity="severe", what="an nginx that compresses and buffers is put in between",
            over=True)),
        Step(load=replace(_WINDOW, connections=2), incident=Incident(
            name="pool-of-two-window", causes=("client_gate",), metric="ttft", severity="medium",
            what="the client has two connections for all requests", over=True,
            events=((0.0, "deploy", "front end with another HTTP library"),))),
        Step(load=_WINDOW, flags=("--max-num-seqs", "2"), facts=seats, incident=Incident(
            name="seats-of-two", causes=("queue_saturation",), metric="ttft", severity="medium",
            what="started again with --max-num-seqs 2, the load as before",
            events=((-5.0, "config", "engine flags"),))),
    ))  # fmt: skip


def _bursts() -> Group:
    return Group(name="bursts", flags=SEATS, scrape_s=2.0, steps=_timeline(_BURSTS,
        Step(load=_BURSTS, incident=Incident(
            name="quiet-bursts", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing but a deploy of the same version",
            events=((4.0, "deploy", "web front end 433, again"),))),
        Step(load=replace(_BURSTS, hold_s=0.01), incident=Incident(
            name="late-reader-bursts", causes=("slow_renderer",), metric="e2e", severity="mild",
            what="the application takes 10 ms for each chunk", over=True)),
        Step(load=replace(_BURSTS, give_up_s=0.15), incident=Incident(
            name="give-ups-bursts", causes=("client_give_ups",), metric=None, severity="severe",
            what="readers leave without a first chunk after 150 ms")),
    ))  # fmt: skip


# --- a fourth set: neighbours, limits of what is put in between, more requests -------------------

_FOURTH_S: Final = {"kiosk": 48.0, "desk": 55.0, "clinic": 48.0, "finder": 55.0, "answers": 48.0,
                           "tenants": 50.0, "audit": 50.0, "archive": 50.0, "linter": 45.0,
                           "forms": 38.0, "pair": 55.0, "floods": 40.0}  # fmt: skip
_KIOSK: Final = Load(rate=4.6, prompt=0.12, output=0.07)
_DESK: Final = Load(rate=3.6, prompt=0.12, output=0.18)
_CLINIC: Final = Load(rate=4.4, prompt=0.14, output=0.09)
_FINDER: Final = Load(rate=3.2, prompt=0.1, output=0.9, long_share=0.06, long=2700, retries=0)
_ANSWERS: Final = Load(rate=4.8, prompt=0.2, output=0.12, known=40, known_share=0.85)
_USERS: Final = Load(rate=3.4, prompt=0.08, output=0.08, shared=600)
_LEDGER: Final = Load(rate=2.6, prompt=0.28, output=0.35)
_ARCHIVE: Final = Load(rate=4.2, prompt=0.15, output=0.08)
_LINTER: Final = Load(rate=1.5, prompt=0.25, output=0.25, temperature=0.0, repeat=True)
_FORMS: Final = Load(rate=2.4, prompt=0.15, output=0.1, models=("legal",))
_REPLICAS: Final = Load(rate=3.0, prompt=0.12, output=0.07)


def _kiosk() -> Group:
    return Group(name="kiosk", flags=SEATS, steps=_timeline(_KIOSK,
        Step(load=replace(_KIOSK, stall_s=0.35), incident=Incident(
            name="reports-in-the-loop", causes=("busy_client",), metric="ttft", severity="medium",
            what="a report blocks the application's event loop for 350 ms, every 2 s on average",
            over=True, events=((-2.0, "deploy", "kiosk 5.2 with usage reports"),))),
        Step(load=_KIOSK, incident=Incident(
            name="quiet-kiosk", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing but a deploy that changed nothing that is asked or read",
            events=((0.0, "deploy", "kiosk 5.3"),))),
        Step(load=replace(_KIOSK, leak_share=0.08, connections=6), incident=Incident(
            name="leaked-responses", causes=("client_gate",), metric="ttft", severity="severe",
            what="one of twelve responses is read to its third chunk and kept open for 10 s, and "
                 "the client has six connections",
            over=True, events=((-1.0, "deploy", "kiosk 5.4, previews of answers"),))),
        Step(load=replace(_KIOSK, streamed=0.85), incident=Incident(
            name="one-route-not-streamed", causes=("streaming_off",), metric="ttft",
            severity="mild", what="15 % of requests, those of one route, are not streamed",
            over=True)),
        Step(load=replace(_KIOSK, connections=2), act="round trip", value=0.07, incident=Incident(
            name="far-and-two-connections", causes=("network_path", "client_gate"),
            metric="ttft", severity="medium",
            what="the application is moved to where a round trip takes 70 ms, with a client of "
                 "two connections", events=((0.0, "deploy", "kiosk in a second region"),))),
    ))  # fmt: skip


def _desk() -> Group:
    return Group(name="desk", flags=SEATS, path="nginx", scrape_s=5.0, steps=_timeline(_DESK,
        Step(load=_DESK, act="drops old", value=3.0, incident=Incident(
            name="reloads-drop-streams", causes=("midstream_errors",), metric=None,
            severity="medium", over=True,
            what="nginx reads its configuration every 3 s, and its old workers drop what is open "
                 "after 20 ms", events=((0.0, "config", "ingress: 1 host added"),
                                        (21.0, "config", "ingress: 1 host added")))),
        Step(load=replace(_DESK, retries=3), act="few at once", value=2.0, incident=Incident(
            name="two-at-once-allowed", causes=("rate_limit_retries",), metric="ttft",
            severity="severe", what="nginx answers 429 to what is more than two requests at once",
            over=True)),
        Step(load=_DESK, act="freezes", value=1.6, incident=Incident(
            name="machine-frozen", causes=("engine_paused",), metric="ttft", severity="severe",
            what="the engine and its API server are stopped for 1.6 s every 9.6 s")),
    ))  # fmt: skip


def _clinic() -> Group:
    return Group(name="clinic", flags=SEATS, path="haproxy", scrape_s=3.0, steps=_timeline(_CLINIC,
        Step(load=_CLINIC, act="looks in", value=0.8, incident=Incident(
            name="firewall-looks-in", causes=("proxy_buffering",), metric="ttft",
            severity="medium", over=True,
            what="HAProxy waits for 3,000 bytes of a response, or 0.8 s, before it passes it on",
            events=((0.0, "config", "response rules of the firewall"),))),
        Step(load=_CLINIC, act="one by one", value=1.0, incident=Incident(
            name="one-at-a-time", causes=("gateway_overhead",), metric="ttft", severity="medium",
            what="HAProxy sends one request at a time to the engine; the others wait in it",
            over=True)),
        Step(load=_CLINIC, act="tokenizes", value=2.0, incident=Incident(
            name="tokens-counted", causes=("frontend_cpu",), metric="ttft", severity="medium",
            what="others let the API server count the tokens of long texts, two at a time",
            over=True)),
        Step(load=replace(_CLINIC, rate=2.7), incident=Incident(
            name="part-of-traffic-lost", causes=("traffic_lost",), metric=None, severity="mild",
            what="four of ten requests are not sent any more")),
    ))  # fmt: skip


def _finder() -> Group:
    return Group(name="finder", flags=SEATS, path="envoy", scrape_s=4.0, steps=_timeline(_FINDER,
        Step(load=_FINDER, act="envoy idles", value=0.3, incident=Incident(
            name="envoy-idles", causes=("idle_timeout",), metric=None, severity="medium",
            what="Envoy ends what is silent for 300 ms; prompts of 2,700 tokens take longer",
            over=True, events=((-1.0, "config", "Envoy listeners 41"),))),
        Step(load=_FINDER, act="lossy", value=0.05, incident=Incident(
            name="packets-lost", causes=("network_path",), metric="e2e", severity="medium",
            what="a round trip to Envoy takes 16 ms, and 5 % of packets are lost", over=True)),
        Step(load=replace(_FINDER, prompt=0.19), incident=Incident(
            name="longer-files", causes=("long_prompts",), metric="ttft", severity="mild",
            what="prompts are twice as long", shift=True)),
    ))  # fmt: skip


def _answers() -> Group:
    return Group(name="answers", flags=SEATS, path="cache", scrape_s=2.0, steps=_timeline(_ANSWERS,
        Step(load=_ANSWERS, act="expires", value=2.0, incident=Incident(
            name="answers-expire", causes=("response_cache_misses",), metric="e2e",
            severity="mild", over=True,
            what="nginx keeps responses for 2 s instead of an hour",
            events=((0.0, "config", "answer cache 2.0"),))),
        Step(load=_ANSWERS, incident=Incident(
            name="quiet-answers", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing")),
        Step(load=_ANSWERS, act="crashes", value=4.0, incident=Incident(
            name="engine-crashes-behind-cache", causes=("engine_down",), metric=None,
            severity="severe",
            what="the engine is killed and started again 4 s later; known answers are kept")),
    ))  # fmt: skip


def _tenants() -> Group:
    return Group(name="tenants", flags=SEATS, scrape_s=2.0, steps=_timeline(_USERS,
        Step(load=replace(_USERS, salted=400), incident=Incident(
            name="salted-prompts", causes=("prefix_cache_collapse",), metric="ttft",
            severity="medium", over=True,
            what="prompts carry a cache salt per user, so that users share no start of 600 tokens",
            events=((0.0, "deploy", "assistant 12, isolation of users"),))),
        Step(load=replace(_USERS, rate=6.5), incident=Incident(
            name="surge-tenants", causes=("traffic_surge",), metric="ttft", severity="mild",
            what="1.9 times as many requests", accept=("batch_size", "queue_saturation"),
            over=True)),
        Step(load=_USERS),
    ))  # fmt: skip


def _ledger() -> Group:
    flags = (*SEATS, "--max-model-len", "1664")
    return Group(name="audit", flags=flags, scrape_s=2.0, facts={"max_model_len": 1664},
                 steps=_timeline(_LEDGER,
        Step(load=_LEDGER, flags=(*flags, "--num-gpu-blocks-override", "14"),
             facts={"kv_cache_tokens": 1664}, incident=Incident(
            name="cache-made-small", causes=("kv_exhaustion",), metric="ttft", severity="severe",
            what="started again with a cache of 1,664 tokens, the load as before",
            events=((-6.0, "config", "share of memory for the engine"),))),
    ))  # fmt: skip


def _archive() -> Group:
    flags = ("--max-model-len", "8192", "--max-num-batched-tokens", "8192",
             "--no-enable-chunked-prefill")  # fmt: skip
    facts = {"chunked_prefill": False, "max_num_batched_tokens": 8192, "max_model_len": 8192,
             "max_num_seqs": 256}  # fmt: skip
    return Group(name="archive", flags=flags, facts=facts, scrape_s=3.0, steps=_timeline(_ARCHIVE,
        Step(load=_ARCHIVE, act="documents", value=3.0, incident=Incident(
            name="documents-beside", causes=("head_of_line",), metric="ttft", severity="severe",
            what="another team's job sends a document of 6,500 tokens every few seconds, "
                 "prefilled whole", over=True)),
        Step(load=replace(_ARCHIVE, output=0.15), incident=Incident(
            name="longer-answers-archive", causes=("longer_outputs",), metric="e2e",
            severity="mild", what="answers 1.9 times as long", accept=("batch_size",), shift=True,
            over=True, events=((0.0, "deploy", "prompt template 31"),))),
        Step(load=_ARCHIVE, act="batch job", value=28.0, incident=Incident(
            name="batch-job-beside", causes=("batch_size",), metric="tpot", severity="medium",
            what="another team's job keeps 28 long answers running on the same engine")),
    ))  # fmt: skip


def _linter() -> Group:
    ngram = ('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, '
             '"prompt_lookup_min": 2}')  # fmt: skip
    flags = ("--max-num-seqs", "4", "--speculative-config", ngram)
    return Group(name="linter", flags=flags, facts={"spec_decode": True, "max_num_seqs": 4},
                 scrape_s=3.0, steps=_timeline(_LINTER,
        Step(load=replace(_LINTER, heated=0.6), incident=Incident(
            name="drafts-half-refused", causes=("low_spec_acceptance",), metric="tpot",
            severity="medium", over=True,
            what="60 % of requests have a temperature of 1.2 at which drafts do not fit")),
        Step(load=_LINTER, act="batch job", value=4.0, incident=Incident(
            name="seats-taken", causes=("queue_saturation",), metric="ttft", severity="severe",
            what="another team's job keeps four long answers on an engine with four seats")),
    ))  # fmt: skip


def _forms() -> Group:
    same = replace(_FORMS, form="same")
    two = ("legal", "legal", "legal", "retail")
    return Group(name="forms", flags=SEATS, adapters=("legal", "retail"), scrape_s=2.0, steps=(
        Step(load=_FORMS),
        Step(load=replace(_FORMS, models=two), incident=Incident(
            name="second-adapter-few", causes=("lora_slots",), metric="ttft", severity="medium",
            what="a quarter of requests ask for a second adapter, of which one fits at a time",
            over=True, events=((-8.0, "deploy", "assistant for retail"),))),
        Step(load=_FORMS),
        Step(load=same),
        Step(load=replace(_FORMS, form="new"), incident=Incident(
            name="new-schema-each-time", causes=("grammar_compilation",), metric="ttft",
            severity="medium", what="every request has a JSON schema of its own",
            events=((0.0, "deploy", "forms 3 with choices per customer"),))),
    ))  # fmt: skip


def _replicas() -> Group:
    return Group(name="pair", flags=SEATS, path="haproxy", scrape_s=5.0, replicas=2,
                 quota=0.3, steps=_timeline(_REPLICAS,
        Step(load=_REPLICAS, act="leans", value=30.0, incident=Incident(
            name="balancer-leans-again", causes=("replica_imbalance",), metric="ttft",
            severity="mild",
            what="HAProxy sends 30 of 31 requests to the first of two engines",
            events=((-1.0, "config", "weights of the balancer"),))),
    ))  # fmt: skip


def _floods() -> Group:
    return Group(name="floods", flags=SEATS, scrape_s=4.0, steps=_timeline(_BURSTS,
        Step(load=replace(_BURSTS, give_up_s=0.4), incident=Incident(
            name="give-ups-rarely", causes=("client_give_ups",), metric=None, severity="mild",
            what="readers leave without a first chunk after 400 ms, where requests come at once",
            events=((-12.0, "deploy", "web front end 440"),))),
    ))  # fmt: skip


# --- a fifth set: milder and shorter ones, other mechanisms --------------------------------------

_FIFTH_S: Final = {"airline": 36.0, "broker": 34.0, "lectures": 30.0, "preprints": 34.0,
                   "reception": 32.0, "reviewer": 30.0, "delivery": 36.0, "notary": 32.0,
                   "compiler": 38.0, "council": 30.0, "academy": 34.0}  # fmt: skip
_AIRLINE: Final = Load(rate=2.1, prompt=0.18, output=0.2, retries=3)
_BROKER: Final = Load(rate=2.2, prompt=0.15, output=0.09, models=("claims",))
_COUNCIL: Final = replace(_BROKER, rate=3.0, prompt=0.06)
_LECTURES: Final = Load(rate=2.6, prompt=0.15, output=0.16)
_PREPRINTS: Final = Load(rate=2.6, prompt=0.07, output=0.1, shared=740, starts=4)
_RECEPTION: Final = Load(rate=4.4, prompt=0.2, output=0.15, known=30, known_share=0.8)
_REVIEWER: Final = Load(rate=3.1, prompt=0.1, output=0.9)
_DELIVERY: Final = Load(rate=4.0, prompt=0.12, output=0.1)
_NOTARY: Final = Load(rate=4.0, prompt=0.14, output=0.12)
_COMPILER: Final = Load(rate=2.4, prompt=0.25, output=0.25, temperature=0.0, repeat=True)


def _airline() -> Group:
    return Group(name="airline", flags=SEATS, path="haproxy", scrape_s=5.0,
                 steps=_timeline(_AIRLINE,
        Step(load=_AIRLINE, act="packs", incident=Incident(
            name="packets-filled-first", causes=("proxy_buffering",), metric="ttft",
            severity="medium", over=True,
            what="HAProxy without http-no-delay waits for up to 200 ms to fill a packet",
            events=((-1.0, "config", "load balancer, from another template"),))),
        Step(load=_AIRLINE, incident=Incident(
            name="quiet-airline", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing but a deploy of something else",
            events=((1.0, "deploy", "seat maps 77"),))),
        Step(load=_AIRLINE, act="denies", value=7.0, incident=Incident(
            name="haproxy-denies", causes=("rate_limit_retries",), metric="ttft", severity="mild",
            what="HAProxy answers 429 to what is more than seven requests in two seconds",
            over=True)),
        Step(load=_AIRLINE, act="pauses once", value=3.0, incident=Incident(
            name="one-snapshot", causes=("engine_paused",), metric="ttft", severity="mild",
            what="the engine's process is stopped once, for 3 s", over=True)),
        Step(load=_AIRLINE, act="shuts sessions", value=3.0, incident=Incident(
            name="sessions-shut", causes=("midstream_errors",), metric=None, severity="mild",
            what="HAProxy closes what is open to the engine every 3 s")),
    ))  # fmt: skip


def _broker() -> Group:
    same = replace(_BROKER, form="same")
    return Group(name="broker", flags=SEATS, adapters=("claims", "letters"), scrape_s=3.0, steps=(
        *_timeline(_BROKER,
            Step(load=replace(_BROKER, models=("claims",) * 9 + ("letters",)), incident=Incident(
                name="one-in-ten-letters", causes=("lora_slots",), metric="ttft", severity="mild",
                what="one request of ten asks for a second adapter, of which one fits at a time",
                over=True)),
            Step(load=replace(_BROKER, streamed=0.75), incident=Incident(
                name="one-pod-of-four-not-streamed", causes=("streaming_off",), metric="ttft",
                severity="mild", what="a quarter of requests, those of one pod, are not streamed",
                events=((0.0, "deploy", "broker front end 8, first of four pods"),))),
        ),
        *_timeline(same,
            Step(load=replace(same, form="new", form_every=3), incident=Incident(
                name="schemas-of-three", causes=("grammar_compilation",), metric="ttft",
                severity="mild", what="every third request has another JSON schema",
                events=((-5.0, "deploy", "forms per insurer"),))),
        ),
    ))  # fmt: skip


def _council() -> Group:
    same = replace(_COUNCIL, form="same")
    often = ("claims", "claims", "claims", "claims", "letters")
    return Group(name="council", flags=SEATS, adapters=("claims", "letters"), scrape_s=3.0, steps=(
        *_timeline(_COUNCIL,
            Step(load=replace(_COUNCIL, models=often), incident=Incident(
                name="one-in-five-letters", causes=("lora_slots",), metric="ttft",
                severity="medium",
                what="every fifth request asks for a second adapter, of which one fits at a time",
            )),
        ),
        *_timeline(same,
            Step(load=replace(same, form="new", form_every=2), incident=Incident(
                name="schemas-of-two", causes=("grammar_compilation",), metric="ttft",
                severity="mild", what="every second request has another JSON schema",
                events=((-5.0, "deploy", "forms per town"),))),
        ),
    ))  # fmt: skip


def _lectures() -> Group:
    return Group(name="lectures", flags=SEATS, scrape_s=2.0, steps=_timeline(_LECTURES,
        Step(load=replace(_LECTURES, render_s=0.0007), incident=Incident(
            name="formatted-again", causes=("slow_renderer",), metric="e2e", severity="mild",
            what="the application formats the whole answer again for each chunk: 0.7 ms for "
                 "every chunk that came before", over=True,
            events=((0.0, "deploy", "lectures 3.0 shows tables"),))),
        Step(load=replace(_LECTURES, leave_s=0.4), incident=Incident(
            name="answers-left", causes=("client_give_ups",), metric=None, severity="medium",
            over=True, what="readers leave an answer that is not complete after 0.4 s")),
        Step(load=_LECTURES, incident=Incident(
            name="quiet-lectures", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing")),
        Step(load=replace(_LECTURES, copies=3, retries=1), incident=Incident(
            name="requests-in-threes", causes=("traffic_surge",), metric="ttft",
            severity="medium", accept=("batch_size", "queue_saturation"), over=True,
            what="the application sends three requests at once for each one before",
            events=((0.0, "deploy", "lectures 3.1 drafts three titles"),))),
        Step(load=replace(_LECTURES, hold_s=0.014), act="round trip", value=0.05,
             incident=Incident(
            name="far-and-late-reader", causes=("network_path", "slow_renderer"),
            metric="e2e", severity="medium",
            what="a round trip takes 50 ms, and the application 14 ms for each chunk")),
    ))  # fmt: skip


_SHELF: Final = ("--max-model-len", "3072", "--num-gpu-blocks-override", "49")
_SHELF_FACTS: Final = {"max_model_len": 3072, "kv_cache_tokens": 6144}


def _preprints() -> Group:
    plain = replace(_PREPRINTS, prompt=0.3, shared=0, starts=0)
    return Group(
        name="preprints", scrape_s=3.0,
        flags=(*SEATS, *_SHELF),
        facts=_SHELF_FACTS,
        steps=(
            *_timeline(_PREPRINTS, Step(load=replace(_PREPRINTS, starts=14), incident=Incident(
                name="more-assistants", causes=("prefix_cache_collapse",), metric="ttft",
                severity="mild",
                events=((0.0, "deploy", "preprints 2, an assistant for each group"),),
                what="prompts begin in 14 ways of 750 tokens instead of 4, more than the cache "
                     "of 6,144 tokens holds"))),
            *_timeline(plain, Step(load=plain, act="long reports", value=3.0, incident=Incident(
                name="reports-fill-cache", causes=("kv_exhaustion",), metric="ttft",
                severity="medium", accept=("batch_size",),
                what="another team's job keeps three reports of 1,250 to 1,550 tokens in a cache "
                     "of 6,144"))),
        ))  # fmt: skip


def _academy() -> Group:
    return Group(name="academy", scrape_s=3.0, flags=(*SEATS, *_SHELF), facts=_SHELF_FACTS,
                 steps=_timeline(_PREPRINTS,
        Step(load=replace(_PREPRINTS, starts=48), incident=Incident(
            name="an-assistant-each", causes=("prefix_cache_collapse",), metric="ttft",
            severity="mild", events=((0.0, "deploy", "academy 4, an assistant for each student"),),
            what="prompts begin in 48 ways of 750 tokens instead of 4, more than the cache of "
                 "6,144 tokens holds")),
    ))  # fmt: skip


def _reception() -> Group:
    return Group(name="reception", flags=SEATS, path="cache", scrape_s=2.0,
                 steps=_timeline(_RECEPTION,
        Step(load=replace(_RECEPTION, known_share=0.5), incident=Incident(
            name="fewer-known-questions", causes=("response_cache_misses",), metric="e2e",
            severity="mild", over=True, events=((0.0, "deploy", "reception 6 greets by name"),),
            what="half of the questions, before 80 %, are asked to the letter again")),
        Step(load=_RECEPTION, incident=Incident(
            name="quiet-reception", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing but a change of what other services may use",
            events=((0.0, "scale", "room service 2 -> 5 pods"),))),
        Step(load=replace(_RECEPTION, stall_s=0.22), incident=Incident(
            name="log-file-in-the-loop", causes=("busy_client",), metric="ttft", severity="mild",
            what="a log file blocks the application's event loop for 220 ms, every 2 s on "
                 "average")),
    ))  # fmt: skip


def _reviewer() -> Group:
    flags = ("--max-model-len", "8192", "--max-num-batched-tokens", "8192")
    facts = {"max_num_batched_tokens": 8192, "max_model_len": 8192, "max_num_seqs": 128}
    once = replace(_REVIEWER, kept=False)
    return Group(name="reviewer", flags=flags, facts=facts, scrape_s=2.0,
                 steps=(*_timeline(_REVIEWER,
        Step(load=replace(_REVIEWER, long_share=0.05, long=5200), incident=Incident(
            name="large-patches", causes=("head_of_line",), metric="ttft", severity="medium",
            what="5 % of prompts have 5,200 tokens, prefilled in one step of up to 8,192",
            accept=("long_prompts",), over=True)),
        Step(load=replace(_REVIEWER, prompt=0.17), incident=Incident(
            name="more-context", causes=("long_prompts",), metric="ttft", severity="mild",
            what="prompts are 1.7 times as long", shift=True, over=True,
            events=((0.0, "deploy", "patch reviews 21"),))),
        Step(load=_REVIEWER, act="evaluation", value=20.0, incident=Incident(
            name="evaluation-beside", causes=("batch_size",), metric="tpot", severity="mild",
            what="another team's evaluation keeps 20 answers running on the same engine")),
    ), *_timeline(once,
        Step(load=once, act="connects late", value=0.07, incident=Incident(
            name="connections-held", causes=("network_path",), metric="ttft", severity="mild",
            what="a firewall holds the first packet of a connection for 70 ms; the application "
                 "makes a new one for each request, before and after")),
    )))  # fmt: skip


def _delivery() -> Group:
    return Group(name="delivery", flags=SEATS, path="haproxy", scrape_s=4.0, replicas=2, quota=0.3,
                 steps=_timeline(_DELIVERY,
        Step(load=_DELIVERY, act="one address", incident=Incident(
            name="sticky-by-address", causes=("replica_imbalance",), metric="ttft",
            severity="mild", over=True,
            what="HAProxy chooses one of two engines by the client's address, which is one",
            events=((0.0, "config", "sessions stay on their engine"),))),
        Step(load=replace(_DELIVERY, rate=0.03), incident=Incident(
            name="no-requests", causes=("traffic_lost",), metric=None, severity="severe",
            what="nothing is sent any more")),
    ))  # fmt: skip


def _notary() -> Group:
    long = replace(_NOTARY, long_share=0.06, long=3900, retries=0)
    return Group(name="notary", flags=SEATS, path="nginx", scrape_s=3.0, steps=(
        *_timeline(_NOTARY,
            Step(load=_NOTARY, act="evens out", value=7.0, incident=Incident(
                name="nginx-evens-out", causes=("gateway_overhead",), metric="ttft",
                severity="medium", over=True,
                what="nginx holds what is more than seven requests a second until its turn comes",
                events=((-1.0, "config", "protection from bursts"),))),
            Step(load=_NOTARY, act="detokenizes", value=2.0, incident=Incident(
                name="tokens-turned-back", causes=("frontend_cpu",), metric="ttft",
                severity="medium", over=True,
                what="others let the API server turn long lists of tokens into text, two at a "
                     "time")),
            Step(load=replace(_NOTARY, connections=2, output=0.2), incident=Incident(
                name="two-connections-longer-answers", causes=("client_gate", "longer_outputs"),
                metric="e2e", severity="medium", accept=("batch_size",),
                what="the client has two connections, and answers are 1.7 times as long",
                events=((0.0, "deploy", "notary 9"),))),
        ),
        *_timeline(long,
            Step(load=long, act="nginx idles", value=0.5, incident=Incident(
                name="nginx-idles", causes=("idle_timeout",), metric=None, severity="mild",
                what="nginx ends what is silent for 500 ms; prompts of 3,900 tokens take longer",
                over=True)),
            Step(load=replace(long, seeded=0.4), incident=Incident(
                name="seeds-end-engine", causes=("engine_down",), metric=None, severity="severe",
                what="40 % of requests carry a seed, which ends this engine when their prompt is "
                     "prefilled in parts", events=((0.0, "deploy", "notary 10, repeatable"),))),
        ),
    ))  # fmt: skip


def _compiler() -> Group:
    ngram = ('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, '
             '"prompt_lookup_min": 2}')  # fmt: skip
    flags = ("--max-num-seqs", "5", "--speculative-config", ngram)
    return Group(name="compiler", flags=flags, facts={"spec_decode": True, "max_num_seqs": 5},
                 scrape_s=3.0, steps=_timeline(_COMPILER,
        Step(load=replace(_COMPILER, temperature=0.6), incident=Incident(
            name="drafts-less-apt", causes=("low_spec_acceptance",), metric="tpot",
            severity="mild", what="a temperature of 0.6, before 0, at which fewer drafts fit",
            over=True)),
        Step(load=_COMPILER, act="batch job", value=3.0, incident=Incident(
            name="three-of-five-seats", causes=("queue_saturation",), metric="ttft",
            severity="medium",
            what="another team's job keeps three long answers on an engine with five seats")),
    ))  # fmt: skip


# --- a sixth set: longer intervals, what applications do to themselves, a hosted model -----------

_SIXTH_S: Final = {"dispatch": 90.0, "kitchen": 72.0, "vans": 90.0, "jetty": 90.0,
                   "atelier": 80.0, "domes": 75.0, "balcony": 45.0, "charts": 42.0,
                   "editing": 45.0}  # fmt: skip
_HOTLINE: Final = Load(rate=3.2, prompt=0.15, output=0.2)
_KITCHEN: Final = Load(rate=2.6, prompt=0.25, output=0.12, tools=8)
_COURIERS: Final = Load(rate=3.0, prompt=0.16, output=0.3)
_HARBOUR: Final = Load(rate=0.85, prompt=0.3, output=0.3, retries=4)
_STUDIO: Final = Load(rate=3.0, prompt=0.08, output=1.2, connections=4, retries=1)
_OBSERVATORY: Final = Load(rate=3.2, prompt=0.14, output=0.12)
_TICKETS: Final = Load(rate=1.8, prompt=0.3, output=0.3, retries=8)
_ATLAS: Final = Load(rate=2.2, prompt=0.08, output=0.15, models=("claims",))
_DRAFTING: Final = Load(rate=1.9, prompt=0.25, output=0.25, temperature=0.0, repeat=True)


def _hotline() -> Group:
    return Group(name="dispatch", flags=SEATS, scrape_s=5.0, steps=_timeline(_HOTLINE,
        Step(load=_HOTLINE, act="updates weights", value=0.6, incident=Incident(
            name="weights-updated", causes=("engine_paused",), metric="ttft", severity="medium",
            over=True, events=((-1.0, "deploy", "trainer 4 sends weights"),),
            what="a trainer lets vLLM hold all requests for 0.6 s, every 8.6 s")),
        Step(load=_HOTLINE, incident=Incident(
            name="quiet-hotline", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing but a deploy that changed nothing that is asked or read",
            events=((0.0, "deploy", "hotline 8.1"),))),
        Step(load=replace(_HOTLINE, overtaken=0.4), incident=Incident(
            name="asked-while-typing", causes=("client_give_ups",), metric=None,
            severity="medium", over=True, events=((0.0, "deploy", "hotline 8.2 suggests"),),
            what="40 % of requests end the one before, where it is still open")),
        Step(load=replace(_HOTLINE, count_s=0.045), incident=Incident(
            name="tokens-counted-in-the-loop", causes=("busy_client",), metric="ttft",
            severity="mild", events=((-2.0, "deploy", "hotline 8.3 with a budget of tokens"),),
            what="the application counts tokens for 45 ms in its event loop before each request")),
    ))  # fmt: skip


def _kitchen() -> Group:
    return Group(name="kitchen", flags=SEATS, scrape_s=15.0, steps=_timeline(_KITCHEN,
        Step(load=replace(_KITCHEN, shuffled=True), incident=Incident(
            name="tools-in-any-order", causes=("prefix_cache_collapse",), metric="ttft",
            severity="medium", over=True,
            what="the eight tools, 1,420 tokens, are described in another order each time",
            events=((0.0, "deploy", "kitchen 14, tools as plug-ins"),))),
        Step(load=replace(_KITCHEN, growth=0.035), incident=Incident(
            name="histories-grow", causes=("long_prompts",), metric="ttft", severity="mild",
            shift=True, over=True,
            what="prompts grow, by 3.5 % of their first length each second")),
        Step(load=replace(_KITCHEN, again=0.5), incident=Incident(
            name="agents-go-on", causes=("traffic_surge",), metric="ttft", severity="mild",
            over=True, accept=("batch_size", "queue_saturation"),
            what="after half of the answers the application asks again at once",
            events=((0.0, "deploy", "kitchen 15, recipes in steps"),))),
        Step(load=replace(_KITCHEN, prompt=0.55), act="round trip", value=0.04,
             incident=Incident(
            name="moved-with-longer-prompts", causes=("network_path", "long_prompts"),
            metric="ttft", severity="medium",
            what="a round trip takes 40 ms, and prompts are 2.2 times as long behind the tools",
            events=((-1.0, "deploy", "kitchen 16 in a second region"),))),
    ))  # fmt: skip


def _couriers() -> Group:
    return Group(name="vans", flags=SEATS, path="envoy", scrape_s=5.0,
                 steps=_timeline(_COURIERS,
        Step(load=_COURIERS, act="short of quota", value=1.3, incident=Incident(
            name="sidecar-throttled", causes=("gateway_overhead",), metric="ttft",
            severity="medium", over=True,
            what="Envoy gets no more than 1.3 times the CPU that it took on average, in each "
                 "100 ms", events=((0.0, "config", "limits of sidecars"),))),
        Step(load=_COURIERS, act="resets", value=6.0, incident=Incident(
            name="connections-reset", causes=("midstream_errors",), metric=None,
            severity="mild", over=True, events=((-2.0, "config", "firewall pair: standby"),),
            what="a firewall without state of them resets all connections to Envoy every 6 s")),
        Step(load=_COURIERS, act="far address", value=0.04, incident=Incident(
            name="far-address-too", causes=("network_path",), metric="ttft", severity="mild",
            what="half of the requests go to a second address, to which a round trip takes 40 ms",
            events=((-3.0, "config", "DNS: two regions"),))),
    ))  # fmt: skip


def _harbour() -> Group:
    return Group(name="jetty", flags=SEATS, path="haproxy", scrape_s=10.0,
                 steps=_timeline(_HARBOUR,
        Step(load=_HARBOUR, act="tokens", value=12500.0, incident=Incident(
            name="tokens-limited", causes=("rate_limit_retries",), metric="ttft",
            severity="severe", over=True,
            what="HAProxy answers 429, to be tried again after 1 s, to what is more than 12,500 "
                 "bytes of requests in ten seconds",
            events=((0.0, "config", "budgets for departments"),))),
        Step(load=_HARBOUR, incident=Incident(
            name="quiet-harbour", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing")),
        Step(load=replace(_HARBOUR, checks_s=0.12), incident=Incident(
            name="sentences-checked", causes=("slow_renderer",), metric="e2e", severity="mild",
            events=((0.0, "deploy", "harbour 5 with moderation"),),
            what="the application has every 20 chunks checked before it reads on, for 120 ms")),
    ))  # fmt: skip


def _studio() -> Group:
    flags = (*SEATS, "--no-enable-per-request-metrics")
    return Group(name="atelier", flags=flags, path="nginx", hosted=True, steps=_timeline(_STUDIO,
        Step(load=_STUDIO, act="breaks", value=20.0, incident=Incident(
            name="one-of-five-broken", causes=("provider_errors",), metric=None,
            severity="medium", over=True,
            what="the provider answers 500 to 20 % of requests")),
        Step(load=replace(_STUDIO, keep_s=0.7), incident=Incident(
            name="saved-before-closed", causes=("client_gate",), metric="ttft",
            severity="medium", over=True, accept=("slow_renderer",),
            what="the application saves an answer, for 0.7 s, before it closes the response; it "
                 "has four connections, before and after",
            events=((0.0, "deploy", "studio 9 keeps drafts"),))),
        Step(load=_STUDIO, act="in pieces", value=2048.0, incident=Incident(
            name="read-in-pieces", causes=("proxy_buffering",), metric="ttft", severity="medium",
            what="a gateway of one's own passes responses on in pieces of 2 KiB",
            events=((-1.0, "deploy", "key gateway 0.3"),))),
    ))  # fmt: skip


def _observatory() -> Group:
    flags = ("--max-model-len", "8192", "--max-num-batched-tokens", "8192")
    facts = {"max_num_batched_tokens": 8192, "max_model_len": 8192, "max_num_seqs": 128}
    return Group(name="domes", flags=flags, facts=facts, scrape_s=3.0,
                 steps=_timeline(_OBSERVATORY,
        Step(load=_OBSERVATORY, act="probe", value=5.0, incident=Incident(
            name="probe-of-long-context", causes=("head_of_line",), metric="ttft",
            severity="medium", over=True,
            what="a monitor sends a prompt of 5,000 tokens every 5 s, prefilled in one step",
            events=((0.0, "config", "synthetic checks, every region"),))),
        Step(load=_OBSERVATORY, act="candidates", value=0.1, incident=Incident(
            name="two-dozen-candidates", causes=("batch_size",), metric="tpot", severity="mild",
            over=True, what="another team asks for 24 answers to one prompt, again and again")),
        Step(load=_OBSERVATORY, act="metrics", value=3.0, incident=Incident(
            name="metrics-read-by-many", causes=("frontend_cpu",), metric="ttft",
            severity="medium",
            what="three programs read the engine's metrics page again and again",
            events=((-4.0, "deploy", "dashboards for every team"),))),
    ))  # fmt: skip


def _tickets() -> Group:
    return Group(name="balcony", flags=("--max-num-seqs", "3"), facts={"max_num_seqs": 3},
                 scrape_s=2.0, steps=_timeline(_TICKETS,
        Step(load=replace(_TICKETS, rate=0.15, copies=9), incident=Incident(
            name="nine-at-once", causes=("queue_saturation",), metric="ttft", severity="severe",
            accept=("traffic_surge",), over=True,
            what="about as many requests as before, nine at once, on an engine with three seats",
            events=((0.0, "deploy", "tickets 3.4, scheduled"),))),
        Step(load=_TICKETS, act="restarts bare", seconds=60.0, incident=Incident(
            name="restart-tried-again", causes=("cold_start",), metric="ttft", severity="severe",
            accept=("engine_down",), over=True, events=((0.0, "deploy", "engine image 12"),),
            what="the engine is restarted; the client tries again until it accepts requests")),
        Step(load=replace(_TICKETS, retries=1), act="scaled to none", value=3.0,
             incident=Incident(
            name="scaled-to-none", causes=("engine_down",), metric=None, severity="severe",
            what="the engine and its API server are ended in order; none is started",
            events=((3.0, "scale", "engine 1 -> 0 pods"),))),
    ))  # fmt: skip


def _atlas() -> Group:
    same = replace(_ATLAS, form="code")
    return Group(name="charts", flags=SEATS, adapters=("claims", "letters"), scrape_s=3.0, steps=(
        *_timeline(_ATLAS,
            Step(load=_ATLAS, act="letters", value=0.25, incident=Incident(
                name="letters-beside", causes=("lora_slots",), metric="ttft", severity="medium",
                what="another team asks for a second adapter, of which one fits at a time")),
        ),
        *_timeline(same,
            Step(load=replace(same, form="new code"), incident=Incident(
                name="patterns-per-customer", causes=("grammar_compilation",), metric="ttft",
                severity="medium", what="every answer has to fit a pattern of its own",
                events=((-2.0, "deploy", "codes per customer"),))),
        ),
    ))  # fmt: skip


def _drafting() -> Group:
    ngram = ('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, '
             '"prompt_lookup_min": 2}')  # fmt: skip
    flags = (*SEATS, "--speculative-config", ngram)
    return Group(name="editing", flags=flags, facts={"spec_decode": True}, scrape_s=4.0,
                 steps=_timeline(_DRAFTING,
        Step(load=_DRAFTING, incident=Incident(
            name="quiet-drafting", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing but more pods of another service",
            events=((1.0, "scale", "spell checker 2 -> 4 pods"),))),
        Step(load=replace(_DRAFTING, penalty=1.5), incident=Incident(
            name="repeats-punished", causes=("low_spec_acceptance",), metric="tpot",
            severity="mild", events=((0.0, "deploy", "drafting 2.2"),),
            what="with a frequency penalty of 1.5 answers repeat less to draft from")),
    ))  # fmt: skip


# --- a seventh set: agents with tools, serverless clients, gateways of one's own -----------------

_SEVENTH_S: Final = 46.0
_PLANNER: Final = Load(rate=0.8, prompt=0.15, output=0.12, tool_s=0.3)
_TRIPS: Final = Load(rate=2.2, prompt=0.2, output=0.15)
_GALLERY: Final = Load(rate=2.7, prompt=0.15, output=0.2, retries=1)
_CLERKS: Final = Load(rate=2.2, prompt=0.2, output=0.15)
_BAKERY: Final = Load(rate=1.6, prompt=0.2, output=0.2, retries=5, connections=8)
_EDITOR: Final = Load(rate=1.5, prompt=0.25, output=0.28, temperature=0.0, repeat=True)
_NEWSROOM: Final = Load(rate=2.3, prompt=0.2, output=0.16)
_COURTS: Final = Load(rate=2.8, prompt=0.07, output=0.9, retries=0)
_MUSEUM: Final = Load(rate=2.8, prompt=0.13, output=0.2, retries=1)
_SILO: Final = Load(rate=1.5, prompt=0.12, output=0.15, shared=1400)
_HELPLINE: Final = Load(rate=3.8, prompt=0.2, output=0.2, known=25, known_share=0.85)
_PAYROLL: Final = Load(rate=1.5, prompt=0.25, output=0.25, retries=1)
_WIDE: Final = ("--max-model-len", "8192", "--max-num-batched-tokens", "8192")
_WIDE_FACTS: Final = {"max_num_batched_tokens": 8192, "max_model_len": 8192, "max_num_seqs": 128}
_TWINS: Final = Load(rate=1.2, prompt=0.15, output=0.2)


def _planner() -> Group:
    return Group(name="tours", flags=("--max-num-seqs", "24"), facts={"max_num_seqs": 24},
                 scrape_s=5.0, steps=(
        *_timeline(_PLANNER,
            Step(load=replace(_PLANNER, serial=True), seconds=60.0, incident=Incident(
                name="tools-one-by-one", causes=("serial_tools",), metric="e2e",
                severity="medium", events=((0.0, "deploy", "trip planner 18"),),
                what="an agent calls its three tools of 300 ms one after the other, before all "
                     "at once")),
        ),
        *_timeline(_TRIPS,
            Step(load=_TRIPS, act="checkpoints", value=1.9, seconds=76.0, incident=Incident(
                name="checkpointed", causes=("engine_paused",), metric="ttft", severity="severe",
                what="the engine's container, its API server too, is stopped for 1.9 s every 18 s",
                events=((-9.0, "scale", "ticket search 4 -> 5 pods"),))),
        ),
    ))  # fmt: skip


def _gallery() -> Group:
    return Group(name="sculpture", flags=("--max-num-seqs", "20"), facts={"max_num_seqs": 20},
                 scrape_s=4.0, steps=_timeline(_GALLERY,
        Step(load=_GALLERY, act="masks", value=0.07, seconds=56.0, incident=Incident(
            name="names-masked", causes=("gateway_overhead",), metric="ttft", severity="medium",
            over=True, events=((-1.0, "deploy", "privacy gateway 0.9"),),
            what="a gateway of one's own has names masked before it passes a request on: 70 ms, "
                 "in which it does nothing else")),
        Step(load=_GALLERY, act="cuts long", value=14000.0, seconds=54.0, incident=Incident(
            name="long-answers-cut", causes=("midstream_errors",), metric=None, severity="medium",
            what="a gateway of one's own hangs up where a response has more than 14,000 bytes",
            events=((-2.0, "config", "limits of bodies"),))),
    ))  # fmt: skip


def _clerks() -> Group:
    return Group(name="desks", flags=SEATS, path="tls", scrape_s=6.0, steps=_timeline(_CLERKS,
        Step(load=replace(_CLERKS, fresh=True), seconds=54.0, incident=Incident(
            name="functions-for-requests", causes=("client_cold",), metric="ttft",
            severity="medium", over=True, events=((0.0, "deploy", "clerks 5, as functions"),),
            what="each request has a client of its own, with no connection yet; TLS, and a round "
                 "trip of 24 ms before and after")),
        Step(load=_CLERKS, act="narrow", value=280_000.0, seconds=52.0, incident=Incident(
            name="narrow-link", causes=("network_path",), metric="e2e", severity="medium",
            over=True, what="280 kbit/s pass between the application and nginx",
            events=((-12.0, "deploy", "clerks 5.1, other icons"),))),
        Step(load=_CLERKS),
    ))  # fmt: skip


def _bakery() -> Group:
    flags = (*SEATS, "--no-enable-per-request-metrics")
    return Group(name="cakes", flags=flags, path="nginx", hosted=True, steps=_timeline(_BAKERY,
        Step(load=_BAKERY, seconds=56.0, incident=Incident(
            name="quiet-bakery", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing")),
        Step(load=replace(_BAKERY, fetches=9), seconds=56.0, incident=Incident(
            name="documents-in-the-pool", causes=("client_gate",), metric="ttft",
            severity="severe", events=((-1.0, "deploy", "bakery 3.3 reads recipes"),),
            what="nine documents are read all the time from a slow store, over the same pool of "
                 "eight connections")),
    ))  # fmt: skip


def _bread() -> Group:
    flags = (*SEATS, "--no-enable-per-request-metrics")
    return Group(name="sourdough", flags=flags, path="limited", hosted=True, steps=(
        *_timeline(_BAKERY,
            Step(load=_BAKERY, act="shares key", value=0.22, seconds=58.0, incident=Incident(
                name="key-shared", causes=("rate_limit_retries",), metric="ttft",
                severity="severe", over=True,
                what="a job of others uses the same key, for which a provider allows four "
                     "requests a second")),
        ),
        Step(load=_BAKERY),
    ))  # fmt: skip


def _editor() -> Group:
    ngram = ('{"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, '
             '"prompt_lookup_min": 2}')  # fmt: skip
    flags = ("--max-num-seqs", "12", "--speculative-config", ngram)
    return Group(name="editor", flags=flags, facts={"spec_decode": True, "max_num_seqs": 12},
                 scrape_s=5.0, steps=_timeline(_EDITOR,
        Step(load=_EDITOR, act="throttled", value=0.5, seconds=54.0, incident=Incident(
            name="limit-of-cpu", causes=("gpu_throttle",), metric="tpot", severity="medium",
            over=True, what="the engine gets half a core in each 20 ms, before a whole one",
            events=((-7.0, "deploy", "editor 9, dark colours"),))),
        Step(load=replace(_EDITOR, temperature=0.8), seconds=54.0, incident=Incident(
            name="creative-mode", causes=("low_spec_acceptance",), metric="tpot",
            severity="medium", over=True, events=((0.0, "deploy", "editor 10, freer wording"),),
            what="a temperature of 0.8, before 0, at which few of six drafts fit")),
        Step(load=replace(_EDITOR, stop_after=14), seconds=54.0, incident=Incident(
            name="stops-for-itself", causes=("client_give_ups",), metric=None, severity="medium",
            what="the application leaves an answer at its fourteenth chunk",
            events=((-3.0, "deploy", "editor 11"),))),
    ))  # fmt: skip


def _newsroom() -> Group:
    query = replace(_NEWSROOM, form="query")
    return Group(name="scoop", flags=("--max-num-seqs", "24"), facts={"max_num_seqs": 24},
                 scrape_s=4.0, steps=(
        *_timeline(_NEWSROOM,
            Step(load=replace(_NEWSROOM, thinks=120, thinks_share=0.3), seconds=56.0,
                 incident=Incident(
                name="some-think-first", causes=("longer_outputs",), metric="e2e",
                severity="medium", accept=("batch_size",), shift=True, over=True,
                what="three of ten answers have 120 tokens more, which are thoughts",
                events=((0.0, "deploy", "newsroom 2.8"),))),
            Step(load=replace(_NEWSROOM, hold_s=0.012, passages=500), seconds=54.0,
                 incident=Incident(
                name="passages-and-tables", causes=("long_prompts", "slow_renderer"),
                metric="e2e", severity="medium",
                what="500 tokens of passages stand in each prompt, and the application takes "
                     "12 ms for each chunk",
                events=((0.0, "deploy", "newsroom 3.0"),))),
        ),
        *_timeline(query,
            Step(load=replace(query, form="new query"), seconds=52.0, incident=Incident(
                name="queries-per-customer", causes=("grammar_compilation",), metric="ttft",
                severity="medium",
                what="every answer is a query by a grammar of its own, with 900 columns")),
        ),
    ))  # fmt: skip


def _courts() -> Group:
    return Group(name="docket", flags=_WIDE, facts=_WIDE_FACTS, path="envoy", scrape_s=3.0,
                 steps=_timeline(_COURTS,
        Step(load=_COURTS, act="warms", value=6.0, seconds=60.0, incident=Incident(
            name="caches-warmed", causes=("head_of_line",), metric="ttft", severity="severe",
            over=True,
            what="a job sends six prompts of 3,500 tokens at once, about every 7 s",
            events=((-4.0, "config", "cache warmer: every court"),))),
        Step(load=_COURTS, act="smaller and far", value=0.6, seconds=52.0, incident=Incident(
            name="smaller-and-farther", causes=("gpu_throttle", "network_path"),
            metric="ttft", severity="medium",
            what="the engine gets 0.6 of a core, and a round trip to it takes 50 ms",
            events=((-2.0, "deploy", "engines in the second data centre"),))),
    ))  # fmt: skip


def _appeals() -> Group:
    long = replace(_COURTS, rate=2.4, long_share=0.06, long=3600)
    return Group(name="gavel", flags=_WIDE, facts=_WIDE_FACTS, path="envoy", scrape_s=3.0,
                 steps=_timeline(long,
        Step(load=long, act="tries idle", value=0.16, seconds=54.0, incident=Incident(
            name="tries-end-early", causes=("idle_timeout",), metric=None, severity="medium",
            what="Envoy ends a try that is silent for 160 ms; prompts of 3,600 tokens take longer",
            events=((-1.0, "config", "Envoy retry policy 7"),))),
    ))  # fmt: skip


def _museum() -> Group:
    return Group(name="hall", flags=("--max-num-seqs", "64"), facts={"max_num_seqs": 64},
                 path="envoy", scrape_s=3.0, steps=_timeline(_MUSEUM,
        Step(load=_MUSEUM, act="mirrors", value=5.0, seconds=56.0, incident=Incident(
            name="mirrored-traffic", causes=("batch_size",), metric="tpot", severity="mild",
            over=True, accept=("traffic_surge",),
            what="Envoy sends five copies of each request to the same engine",
            events=((0.0, "config", "shadow traffic for a test"),))),
        Step(load=_MUSEUM, act="reads", seconds=54.0, incident=Incident(
            name="whole-body-read", causes=("proxy_buffering",), metric="ttft",
            severity="severe", over=True, events=((0.0, "config", "Envoy filter chain 31"),),
            what="a Lua filter of Envoy reads the whole response before it passes it on")),
        Step(load=_MUSEUM, act="breaker", value=1.0, seconds=54.0, incident=Incident(
            name="breaker-opens", causes=("provider_errors",), metric=None, severity="medium",
            what="Envoy answers 503 to what is more than one request at once")),
    ))  # fmt: skip


def _silo() -> Group:
    plain = replace(_SILO, rate=1.7, prompt=0.3, output=0.3, shared=0)
    return Group(
        name="hayloft", scrape_s=2.0,
        flags=(*SEATS, "--max-model-len", "3072", "--num-gpu-blocks-override", "25"),
        facts={"max_model_len": 3072, "kv_cache_tokens": 3072},
        steps=(
            *_timeline(_SILO, Step(load=_SILO, act="forgets", value=0.4, seconds=54.0,
                                   incident=Incident(
                name="starts-forgotten", causes=("prefix_cache_collapse",), metric="ttft",
                severity="medium", events=((-1.0, "deploy", "weekly fine-tuning, now hourly"),),
                what="a trainer lets vLLM forget the starts of prompts, twice a second"))),
            *_timeline(plain, Step(load=plain, act="samples", value=1.0, seconds=54.0,
                                   incident=Incident(
                name="samples-fill-cache", causes=("kv_exhaustion",), metric="ttft",
                severity="severe",
                what="another team asks for six answers of 300 tokens at once, again and again, "
                     "in a cache of 3,072 tokens"))),
        ))  # fmt: skip


def _helpline() -> Group:
    bursts = replace(_HELPLINE, rate=1.1, copies=4)
    return Group(name="phones", flags=SEATS, path="cache", scrape_s=3.0, steps=(
        *_timeline(_HELPLINE,
            Step(load=_HELPLINE, act="emptied", value=3.0, seconds=54.0, incident=Incident(
                name="disk-freed", causes=("response_cache_misses",), metric="e2e",
                severity="mild", over=True,
                what="a job that frees the disk deletes all kept responses every 3 s")),
            Step(load=replace(_HELPLINE, saves_s=0.1), seconds=52.0, incident=Incident(
                name="saved-in-the-loop", causes=("busy_client",), metric="ttft",
                severity="medium",
                what="the application saves each answer in its event loop, which takes 100 ms")),
        ),
        Step(load=bursts),
        Step(load=bursts, seconds=60.0, incident=Incident(
            name="quiet-rush", causes=(), metric="e2e", severity="none", quiet=True,
            what="nothing but deploys that changed nothing that is asked; four requests come at "
                 "once, before and after",
            events=((-1.0, "deploy", "helpline 44"), (6.0, "config", "colours of the page")))),
    ))  # fmt: skip


def _payroll() -> Group:
    return Group(name="bonus", flags=("--max-num-seqs", "4"), path="haproxy",
                 facts={"max_num_seqs": 4}, scrape_s=5.0, steps=(*_timeline(_PAYROLL,
        Step(load=_PAYROLL, act="cron", value=12.0, seconds=60.0, incident=Incident(
            name="cron-takes-seats", causes=("queue_saturation",), metric="ttft",
            severity="severe", over=True, events=((-15.0, "deploy", "payroll 6, translations"),),
            what="a cron job asks for twelve answers at once, about every 14 s, on an engine "
                 "with four seats")),
        Step(load=_PAYROLL, seconds=56.0, incident=Incident(
            name="quiet-payroll", causes=(), metric="ttft", severity="none", quiet=True,
            what="nothing but another version of something else",
            events=((-3.0, "deploy", "payslip printer 12"),))),
        Step(load=_PAYROLL, act="api server killed", value=3.0, seconds=72.0, incident=Incident(
            name="api-server-killed", causes=("engine_down",), metric=None, severity="severe",
            over=True,
            what="the API server is killed, and started again with its engine 3 s later")),
    ), Step(load=_PAYROLL)))  # fmt: skip


def _twins() -> Group:
    return Group(name="managed", flags=("--max-num-seqs", "8"), path="haproxy", scrape_s=4.0,
                 replicas=2, facts={"max_num_seqs": 8}, steps=_timeline(_TWINS,
        Step(load=_TWINS, act="second replaced", seconds=84.0, incident=Incident(
            name="second-replaced", causes=("cold_start",), metric="ttft", severity="severe",
            accept=("engine_down",), events=((0.0, "deploy", "engine image 31, one by one"),),
            what="the second of two engines is restarted; HAProxy holds its half of the requests "
                 "until it accepts them")),
    ))  # fmt: skip


def plan() -> tuple[Group, ...]:
    """Return everything that is recorded, an engine after the other."""
    first = _chat(), _few(), _prefix(), _nginx(), _envoy(), _cache(), _cpu()
    planned = _seats(), _restart(), _drafts(), _whole()
    few = *planned, _cut(), _tight()
    more = _app(), _balanced(), _edge(), _rag()
    third = (
        *(_voice(), _region(), _fleet(), _cached(), _auth(), _adapters(), _manual()),
        *(_lines(), _canary(), _window(), _patience(), _slots(), _bursts()),
    )
    fourth = (
        *(_kiosk(), _desk(), _clinic(), _finder(), _answers(), _tenants()),
        *(_ledger(), _archive(), _linter(), _forms(), _replicas(), _floods()),
    )
    fifth = (
        *(_airline(), _broker(), _lectures(), _preprints(), _reception()),
        *(_reviewer(), _delivery(), _notary(), _compiler(), _council(), _academy()),
    )
    sixth = (
        *(_hotline(), _kitchen(), _couriers(), _harbour(), _studio(), _observatory()),
        *(_tickets(), _atlas(), _drafting()),
    )
    seventh = (
        *(_planner(), _gallery(), _clerks(), _bakery(), _bread(), _editor(), _newsroom()),
        *(_courts(), _appeals(), _museum(), _silo(), _helpline(), _payroll(), _twins()),
    )
    return (
        *first,
        *(_stretched(group, _LONG_S) for group in few),
        *(_stretched(group, _LONGER_S) for group in more),
        *(_stretched(group, _THIRD_S[group.name]) for group in third),
        *(_stretched(group, _FOURTH_S[group.name]) for group in fourth),
        *(_stretched(group, _FIFTH_S[group.name]) for group in fifth),
        *(_stretched(group, _SIXTH_S[group.name]) for group in sixth),
        *(_stretched(group, _SEVENTH_S) for group in seventh),
    )
