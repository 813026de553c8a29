"""Measure an endpoint: check it, warm it up, send a plan's requests, from as many processes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

from llmtrace.budget import Budget
from llmtrace.configure import read_environment
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.load_test.client_processes import send_split
from llmtrace.load_test.endpoint_apis import check
from llmtrace.load_test.send_plan import Done, Measured, Plan, send


def measure(plan: Plan, budget: Budget, done: Done = lambda _answered: None) -> Measured:
    """Send the requests and return what they waited for; Ctrl-C ends it early.

    Limits of the budget are exact in the rows' histograms; `done` gets each request's `Answered`
    as it is over.

    Raises:
        SourceError: the endpoint does not answer; the message says why.
        ConfigError: recording is switched off in the environment.
    """
    return measure_prepared(prepare(plan, budget), budget, done)


def prepare(plan: Plan, budget: Budget) -> Plan:
    """Check the endpoint, warm it up, and return the plan that is left, for `measure_prepared`.

    Raises:
        SourceError: the endpoint does not answer; the message says why.
        ConfigError: recording is switched off in the environment.
    """
    if read_environment(os.environ).disabled:
        raise ConfigError("LLMTRACE_DISABLED or OTEL_SDK_DISABLED is set: nothing is measured")
    plan = replace(plan, sending=asyncio.run(check(plan.sending)))
    if plan.warm_up:
        send(replace(plan, requests=plan.warm_up, concurrency=1, seconds=None), budget)
    return replace(plan, warm_up=())


def measure_prepared(plan: Plan, budget: Budget, done: Done = lambda _answered: None) -> Measured:
    """Send the requests of a plan that `prepare` returned.

    Raises:
        SourceError: nothing was recorded.
    """
    sent = send_split if plan.processes > 1 else send
    measured = sent(plan, budget, done)
    if not measured.rows and not measured.interrupted:
        raise SourceError(f"no request to {plan.sending.target.url} was recorded")
    return measured
