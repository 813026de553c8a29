"""Print the start-up text of a collector: its addresses, and how to send to them."""

from __future__ import annotations

from typing import TextIO

from llmtrace import __version__
from llmtrace_collector.config.schema import Config
from llmtrace_collector.scrape.fetch import shown
from llmtrace_collector.serve.how_to_send import Places


def lines(config: Config, places: Places) -> list[tuple[str, str, str]]:
    """Return the lines of the text: a name, a value, and how to use it."""
    said = []
    if (at := places.otlp_http) is not None:
        url = places.url(at)
        said.append(("OTLP over HTTP", url, f"OTEL_EXPORTER_OTLP_ENDPOINT={url}"))
    if (at := places.otlp_grpc) is not None:
        url = places.url(at)
        said.append(("OTLP over gRPC", url, f"vllm serve ... --otlp-traces-endpoint {url}"))
    if (at := places.web) is not None:
        url = places.url(at)
        said.append(("live page", f"{url}/", f"llmtrace top --url {url}"))
        said.append(("metrics", f"{url}/metrics", "for Prometheus"))
    store = config.store.url
    kept = f"spans {config.store.spans_days} days, rows {config.store.rows_days} days"
    said.append(("data", str(config.data) if store is None else shown(store), kept))
    scrape = config.scrape
    listed = sum(map(len, scrape.targets))
    targets = [f"{listed} listed"] if listed else []
    for kind, found in (
        ("list", scrape.files + scrape.http),
        ("DNS name", scrape.dns),
        ("pod selector", scrape.kubernetes),
    ):
        targets += [f"{len(found)} {kind}{'s' * (len(found) > 1)}"] if found else []
    every = f"every {scrape.interval:g} s" if targets else "--target http://engine:8000/metrics"
    said.append(("engines", ", ".join(targets) or "none", every))
    said.append(("GPUs", f"{places.gpus} here" if places.gpus else "none here", ""))
    names = ", ".join(budget.name for budget in config.budget)
    said.append(("budget", names, "" if len(config.budget) > 1 else "--budget FILE for your own"))
    return said


def show(config: Config, places: Places, out: TextIO) -> None:
    """Print the text, unless the log is JSON for programs."""
    if config.log.format == "json":
        return
    said = lines(config, places)
    name_room = max(len(name) for name, _, _ in said)
    what_room = max(len(what) for _, what, _ in said)
    out.write(f"llmtrace collect {__version__}\n\n")
    out.writelines(
        f"  {name:<{name_room}}  {what:<{what_room}}  {use}".rstrip() + "\n"
        for name, what, use in said
    )
    out.write("\nCtrl-C stops it gracefully, twice at once.\n\n")
    out.flush()
