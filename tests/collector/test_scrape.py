"""Are all targets read, whatever one of them does?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.scrape.credentials import Credentials
from llmtrace_collector.scrape.scraper import Scraper, ScrapeSettings, TargetState
from llmtrace_collector.scrape.targets import FileTargets, HttpTargets, StaticTargets, Target
from llmtrace_collector.signals.exposition_parser import Limits
from llmtrace_collector.signals.interval import Mean
from llmtrace_collector.signals.normalise import Normaliser
from llmtrace_collector.signals.profile import builtin_profiles
from tests.support.waiting import auntil

from . import pages, web

QUICK = ScrapeSettings(interval_s=0.4, timeout_s=0.4, refresh_s=0.1, limits=Limits(size=200_000))
PATIENCE_S = 30.0


def static(*urls: str, **more: object) -> list[StaticTargets]:
    """List targets."""
    return [StaticTargets(tuple(Target(url, **more) for url in urls))]


async def until(true: Callable[[], object], what: str) -> None:
    """Wait for something to come true, on however slow a machine."""
    await auntil(true, f"never happened: {what}", PATIENCE_S)


def good() -> bytes:
    """Return the answer of a real vLLM."""
    return web.answer(pages.scrape("vllm-0.32-metrics.txt"))


def running(state: TargetState) -> list[object]:
    """Return the `running` signals of a target's last reading."""
    measured = state.reading.measured if state.reading else ()
    return [one.value for one in measured if one.signal.name == "running"]


def test_a_target_is_read_again_and_again():
    """On one connection, with a window between two readings."""
    connections = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await web.always(good())(reader, writer)

    async def main() -> None:
        async with web.listening(counted) as url, Scraper(static(url), QUICK) as scraper:
            await until(lambda: any(s.pages >= 3 for s in scraper.states()), "three pages")
            (state,) = scraper.states()
            assert state.up is True
            assert state.problem is None
            assert running(state) == [0.0]
            assert state.intervals[0].means == {}
            assert state.target.instance == url.removeprefix("http://")

    asyncio.run(main())
    assert connections == 1


@pytest.mark.parametrize(
    ("handle", "reason"),
    [
        (web.silent, "timeout"),
        (web.dripping, "timeout"),
        (web.endless, "size"),
        (web.broken, "protocol"),
        (web.always(web.answer("no", status="500 Oops")), "http"),
        (web.always(web.answer("", "302 Found", "Location: http://127.0.0.1:1/\r\n")), "http"),
        (web.always(web.answer(b"\x1f\x8b", headers="Content-Encoding: gzip\r\n")), "encoded"),
        (web.always(b"SSH-2.0-OpenSSH_9.2\r\n"), "protocol"),
        (
            web.always(web.answer('vllm:num_requests_running 5 # {x="y"} 1\n{{{ 4 5\n# EOF\n')),
            "page",
        ),
        (web.always(web.answer("<!DOCTYPE html>\n<title>Welcome to nginx!</title>\n")), "page"),
        (web.always(web.answer('{"detail": "Not Found"}')), "page"),
    ],
)
def test_every_way_to_fail_has_its_word(handle, reason, caplog):
    """It is counted, kept in words, logged once; and there is no reading."""

    async def main() -> None:
        async with web.listening(handle) as url, Scraper(static(url), QUICK) as scraper:
            await until(
                lambda: any(s.failures[reason] >= 2 for s in scraper.states()), f"two {reason}"
            )
            (state,) = scraper.states()
            assert state.up is False
            assert state.reading is None
            assert url in (state.problem or "")

    with caplog.at_level(logging.WARNING, "llmtrace.collector"):
        asyncio.run(main())
    assert sum("a target is not read" in line for line in caplog.messages) == 1


def test_a_redirect_is_not_followed_and_says_where_to():
    """Neither its user and password nor what it may be called with is shown."""
    moved = "Location: https://u:pw@elsewhere:1/metrics?key=k\r\n"

    async def main() -> None:
        handle = web.always(web.answer("", "307 Moved", moved))
        async with web.listening(handle) as url, Scraper(static(url), QUICK) as scraper:
            await until(lambda: any(s.problem for s in scraper.states()), "its problem")
            (state,) = scraper.states()
            said = state.problem or ""
            assert said.endswith("answered 307: name the page itself, https://elsewhere:1/metrics")

    asyncio.run(main())


def test_an_engine_that_no_longer_serves_its_metrics(caplog):
    """Behind HTML or an empty or damaged page it is down, and an engine, as before its metrics."""
    page = good()

    async def changing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(page)
            await writer.drain()

    async def main() -> None:
        nonlocal page
        async with web.listening(changing) as url, Scraper(static(url), QUICK) as scraper:
            await until(lambda: any(s.up for s in scraper.states()), "a page")
            (state,) = scraper.states()
            whole = page
            for broken, problem in (
                ("<html>Welcome to nginx!</html>", "not a metrics page"),
                ("", "the page has no metrics"),
                ("vllm:num_requests_running{ 3\n\0 nan", "the page has no metrics"),
            ):
                page = web.answer(broken)
                await until(lambda: state.up is False, "that it is down")
                assert state.kind == "engine"
                assert state.reading is None
                assert (state.problem or "").endswith(problem)
                page = whole
                await until(lambda: state.up, "that it is up")
            page = web.answer("process_cpu_seconds_total 3\n")  # as before its first request
            await until(lambda: state.reading and not state.reading.measured, "an idle engine")
            assert (state.up, state.kind) == (True, "engine")

    with caplog.at_level(logging.WARNING, "llmtrace.collector"):
        asyncio.run(main())
    assert sum("the page has no metrics" in line for line in caplog.messages) == 2


def test_another_reason_is_logged_too(caplog):
    """The first one alone would name a cause that is over."""
    statuses = ["401 Unauthorized", "500 Error", "500 Error", "401 Unauthorized"]

    async def changing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(web.answer("", statuses.pop(0) if statuses else "200 OK"))
            await writer.drain()

    async def main() -> None:
        async with web.listening(changing) as url, Scraper(static(url), QUICK) as scraper:
            await until(lambda: any(s.up for s in scraper.states()), "a page")

    with caplog.at_level(logging.WARNING, "llmtrace.collector"):
        asyncio.run(main())
    failed = [line[-3:] for line in caplog.messages if "a target is not read" in line]
    assert failed == ["401", "500", "401"]


def test_nothing_listens_there():
    """A target that is down is a failure of its own kind, and comes back when it does."""

    async def main() -> None:
        async with web.listening(web.always(good())) as url:
            port = int(url.rpartition(":")[2])
        async with Scraper(static(url), QUICK) as scraper:
            await until(lambda: any(s.failures["connect"] for s in scraper.states()), "failure")
            (state,) = scraper.states()
            assert str(state.problem).endswith(": Connection refused")
            server = await asyncio.start_server(web.always(good()), "127.0.0.1", port)
            await until(lambda: any(s.up for s in scraper.states()), "recovery")
            (state,) = scraper.states()
            assert state.problem is None
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("handle", [web.silent, web.dripping, web.endless])
def test_those_that_hang_do_not_delay_the_others(handle):
    """Fifty that never come to an end, far fewer large pages at once, and one that answers."""
    settings = ScrapeSettings(
        interval_s=1.0, timeout_s=1.0, refresh_s=5.0, large_pages=2, limits=Limits(size=1 << 20)
    )

    async def main() -> None:
        async with AsyncExitStack() as stack:
            stuck = await stack.enter_async_context(web.listening(handle))
            well = await stack.enter_async_context(web.listening(web.always(good())))
            urls = [f"{stuck}/{n}" for n in range(50)]
            scraper = await stack.enter_async_context(Scraper(static(*urls, well), settings))

            def fine() -> TargetState:
                return next(s for s in scraper.states() if s.target.url == well)

            await until(lambda: scraper.states() and fine().pages >= 3, "three pages")
            others = [s for s in scraper.states() if s.target.url != well]
            assert len(others) == 50
            # Had it waited for each of them, they would have failed many times over by now.
            assert max(s.failures.total() for s in others) <= 20

    asyncio.run(main())


def test_tokens_are_sent_and_never_logged(tmp_path: Path, caplog):
    """From a file that is read each time, so that it may be renewed."""
    seen: list[bytes] = []
    token = tmp_path / "token"
    token.write_text("s3cret\n")

    async def noting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.extend(line for line in head.split(b"\r\n") if line.startswith(b"Authorization"))
            writer.write(web.answer("no", status="401 Unauthorized"))

    async def main() -> None:
        async with (
            web.listening(noting) as url,
            Scraper(static(url, credentials=Credentials(token_file=token)), QUICK) as scraper,
        ):
            await until(lambda: any(s.failures["http"] for s in scraper.states()), "401")
            token.write_text("renewed")
            await until(lambda: b"Authorization: Bearer renewed" in seen, "the new one")
            token.unlink()
            await until(lambda: any(s.failures["token"] for s in scraper.states()), "none")

    with caplog.at_level(logging.DEBUG, "llmtrace"):
        asyncio.run(main())
    assert seen[0] == b"Authorization: Bearer s3cret"
    assert "s3cret" not in caplog.text
    assert "renewed" not in caplog.text


def test_each_new_problem_of_a_list_is_logged_once(tmp_path: Path, caplog):
    """And that it is over; nothing else says that changes to the file have no effect."""
    listed = tmp_path / "targets.yaml"
    good = "[{targets: ['127.0.0.1:1']}]"
    listed.write_text(good)

    async def main() -> None:
        async with Scraper([FileTargets(listed)], QUICK) as scraper:
            await until(scraper.states, "a list")
            failures = scraper.source_failures
            for wrong in ("{a: b}", "- targets: 3"):
                before = failures.total()
                listed.write_text(wrong)
                await until(lambda n=before + 2: failures.total() >= n, "two failures")
                [words] = scraper.source_problems.values()
                assert "what it listed before stays in use" in words
                listed.write_text(good)
                await until(lambda: not scraper.source_problems, "that it is well again")

    with caplog.at_level(logging.INFO, "llmtrace.collector"):
        asyncio.run(main())
    ends = [line.partition(".yaml")[2] for line in caplog.messages if "file " in line]
    first, again, second, again_2 = ends
    assert "must be a list of {" in first
    assert "must be a list of texts" in second
    assert {again, again_2} == {" is read again"}


def test_targets_come_and_go_with_their_file(tmp_path: Path):
    """A target that is listed no more is read no more; a broken file changes nothing."""
    listed = tmp_path / "targets.yaml"

    async def main() -> None:
        async with web.listening(web.always(good())) as url:
            host = url.removeprefix("http://")
            listed.write_text(f"[{{targets: ['{host}'], labels: {{env: test}}}}]")
            async with Scraper([FileTargets(listed)], QUICK) as scraper:
                await until(lambda: any(s.up for s in scraper.states()), "reading")
                assert scraper.states()[0].target.labels == (("env", "test"),)
                listed.write_text("{not: a list}")
                await until(lambda: scraper.source_failures.total() >= 1, "a failure")
                assert len(scraper.states()) == 1
                listed.write_text("[]")
                await until(lambda: not scraper.states(), "removal")

    asyncio.run(main())


def test_targets_of_a_server():
    """Prometheus's HTTP discovery."""

    async def main() -> None:
        async with web.listening(web.always(good())) as url:
            host = url.removeprefix("http://")
            body = f'[{{"targets": ["{host}"], "labels": {{"__metrics_path__": "/m"}}}}]'
            async with (
                web.listening(web.always(web.answer(body))) as discovery,
                Scraper([HttpTargets(discovery)], QUICK) as scraper,
            ):
                await until(lambda: any(s.up for s in scraper.states()), "reading")
                assert scraper.states()[0].target.url == f"{url}/m"

    asyncio.run(main())


def test_more_targets_than_are_read(caplog):
    """The bound is reported, and those beyond it are counted."""
    settings = ScrapeSettings(refresh_s=0.1, most_targets=3)

    async def main() -> None:
        async with Scraper(static(*[f"http://127.0.0.1:1/{n}" for n in range(5)]), settings) as s:
            await until(lambda: s.left_out, "left out")
            assert len(s.states()) == 3
            assert s.left_out == 2

    asyncio.run(main())
    assert "5 targets are listed and 3 read" in caplog.text


def test_a_missing_name_is_logged_once(caplog):
    """On call wants the name, and wants it once."""
    text = pages.scrape("vllm-0.32-metrics.txt").replace("vllm:kv_cache_usage_perc", "vllm:kv")

    async def main() -> None:
        async with (
            web.listening(web.always(web.answer(text))) as url,
            Scraper(static(url), QUICK) as scraper,
        ):
            await until(lambda: any(s.pages >= 3 for s in scraper.states()), "three pages")

    with caplog.at_level(logging.WARNING, "llmtrace.collector"):
        asyncio.run(main())
    shown = [line for line in caplog.messages if "kv_usage" in line]
    assert len(shown) == 1
    assert "vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc" in shown[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interval_s": 0}, "interval_s: 0 must be a number above 0"),
        ({"timeout_s": float("nan")}, "timeout_s: nan must be"),
        ({"interval_s": 5.0}, "timeout: 10 is longer than scrape.interval, 5"),
        ({"large_pages": -1}, "large_pages: -1 must be"),
    ],
)
def test_wrong_settings(changes, words):
    """They are reported before anything is read."""
    with pytest.raises(ConfigError, match=words):
        ScrapeSettings(**changes)


def test_one_source_that_breaks_does_not_stop_the_others():
    """Not even with an unforeseen error."""

    class Broken:
        name = "broken"

        async def targets(self, session: object) -> Sequence[Target]:
            raise RuntimeError("no")

    async def main() -> None:
        async with (
            web.listening(web.always(good())) as url,
            Scraper([Broken(), *static(url)], QUICK) as scraper,
        ):
            await until(lambda: any(s.up for s in scraper.states()), "reading")
            assert scraper.source_failures["broken"] >= 1

    asyncio.run(main())


def test_an_interval_covers_the_readings_that_failed():
    """The engine counts on while its page does not come, and none of its work is lost."""
    steps = iter(["ok", "fails", "ok"])
    counts = iter([10, 40])

    def page() -> bytes:
        if next(steps, "ok") == "fails":
            return web.answer("no", status="503 Busy")
        count = next(counts, 40)
        return web.answer(
            "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
            "# TYPE vllm:request_queue_time_seconds histogram\n"
            f'vllm:request_queue_time_seconds_bucket{{le="+Inf"}} {count}\n'
            f"vllm:request_queue_time_seconds_sum {count / 10}\n"
            f"vllm:request_queue_time_seconds_count {count}\n"
        )

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(page())

    async def main() -> None:
        async with web.listening(handle) as url, Scraper((), QUICK) as scraper:
            state = TargetState(Target(url), Normaliser(builtin_profiles()))
            for _ in range(3):
                await scraper.read(state)
            assert state.failures["http"] == 1
            assert state.intervals[0].means["queue"] == Mean(30, pytest.approx(0.1))

    asyncio.run(main())
