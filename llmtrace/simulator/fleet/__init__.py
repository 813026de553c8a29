"""Simulate a fleet of engines and an incident: rows, signals and facts.

A simulated day of several engines behind gateways, with clients in regions, tenants and agents:
continuous batching, paged KV cache with preemption, prefix cache, chunked prefill, speculative
decoding, routing, retries, timeouts. Every cause that triage names can be injected, by changing
the mechanism that it is about. Deterministic by seed; a million requests take half a minute.

    from llmtrace.simulator.fleet.scenario import Scenario, simulate
    simulated = simulate(Scenario(seed=7, faults=(("kv_exhaustion", 2),)))
    simulated.case       # rows, signals and facts, as they would have been seen
    simulated.truth      # the injected faults, and which metrics moved; no analysis may see it

Nothing here knows triage. Needs the extra `simulate` (numpy, numba). docs/develop/simulator.md
"""
