"""Does `llmtrace doctor` say what a server reports, and what would fix the rest?"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
from pathlib import Path

import pytest

from llmtrace import cli
from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.errors import SourceError
from llmtrace.simulator.server import ServerConfig, serve
from llmtrace_collector.commands import doctor
from llmtrace_collector.commands.doctor import Report, examine
from tests.support.certificates import self_signed

from . import pages, web

SCRAPE = pages.scrape("vllm-0.32-metrics.txt")
VLLM = {"/metrics": (200, SCRAPE), "/version": (200, '{"version": "0.32.0+cpu"}')}


def look(url: str, **more: object) -> Report:
    """Examine a server."""
    return asyncio.run(examine(url, **more))


def states(report: Report) -> dict[str, str]:
    """Return what is said of each signal."""
    return {one.signal: one.state for one in report.signals}


def settings(report: Report) -> dict[str, str]:
    """Return what is said of each setting, by its first word."""
    return {one.setting.split()[0]: one.state for one in report.settings}


@pytest.mark.parametrize("path", ["", "/", "/v1", "/metrics"])
def test_a_vllm_is_known_wherever_one_points(path):
    """By its address, its API, or its page."""
    with web.serving(VLLM) as url:
        report = look(url + path)

    assert report.url == f"{url}/metrics"
    assert report.engines == ("vLLM",)
    assert report.version == "0.32.0+cpu"
    assert report.replicas == ("model tiny, replica 0",)
    assert report.lacking == ()
    assert states(report)["queue"] == "reported"
    assert states(report)["spec_drafted"] == "not here"


def test_values_are_shown_as_they_are_now():
    """A mean and how many it is of; the parts of a signal that has them."""
    with web.serving(VLLM) as url:
        shown = {one.signal: one.value for one in look(url).signals}

    assert shown["queue"] == "mean 0.01395 s, n 62"
    assert shown["step_tokens"] == "mean 56.66, n 252"
    assert shown["generation_tokens"] == "1284"
    assert shown["kv_usage"] == "0"
    assert shown["waiting_by_reason"] == "capacity 0, deferred 0"


def test_a_value_of_several_replicas_says_so():
    """And a label's odd letters do not break the line of the title."""
    more = re.sub(
        r'(?m)^vllm:.*engine="0".*\n',
        lambda one: one[0] + one[0].replace('"0"', r'"1\n2"'),
        SCRAPE,
    )
    with web.serving({"/metrics": (200, more)}) as url:
        report = look(url)

    shown = {one.signal: one.value for one in report.signals}
    assert report.replicas == ("model tiny, replica 0", "model tiny, replica 1?2")
    assert shown["queue"] == "mean 0.01395 s, n 124 (2 series)"
    assert shown["generation_tokens"] == "2568 (sum of 2)"
    assert shown["kv_usage"] == "0 (mean of 2)"
    assert shown["waiting_by_reason"] == "capacity 0 (sum of 2), deferred 0 (sum of 2)"


def test_settings_that_can_be_seen_are_distinguished_from_those_that_cannot():
    """Default buckets are too wide; spans and the plugin cannot be seen from outside."""
    with web.serving(VLLM) as url:
        found = settings(look(url))

    assert found == {
        "--enable-per-request-metrics": "?",
        "--enable-request-id-headers": "?",
        "--otlp-traces-endpoint": "?",
        "LLMTRACE_VLLM_PLUGIN=1": "?",
        "--custom-histogram-buckets": "needed",
    }


def test_finer_buckets_are_noticed():
    """The setting is then shown as present."""
    fine = SCRAPE.replace(
        'vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"',
        'vllm:request_queue_time_seconds_bucket{engine="0",le="0.01"',
    )
    with web.serving({"/metrics": (200, fine)}) as url:
        assert settings(look(url))["--custom-histogram-buckets"] == "set"


def test_a_setting_that_comes_with_a_later_version():
    """No advice names a flag that is not there yet."""
    old = {"/metrics": (200, pages.VLLM_0_6), "/version": (200, '{"version": "0.6.1"}')}
    with web.serving(old) as url:
        found = {one.setting.split()[0]: one for one in look(url).settings}

    for setting in ("--enable-per-request-metrics", "--custom-histogram-buckets"):
        assert found[setting].state == "not here"
    assert found["--enable-per-request-metrics"].note.endswith("; from 0.25.0 on")


def test_a_version_is_bounded_by_names_where_none_is_reported():
    """The page itself gives it away."""
    with web.serving({"/metrics": (200, SCRAPE)}) as url:
        assert look(url).version == "0.32.0 or later, by its names"
    with web.serving({"/metrics": (200, pages.VLLM_0_6)}) as url:
        assert look(url).version == "0.6.0 to 0.8.5, by its names"


def test_other_paths_are_tried():
    """TensorRT-LLM has JSON at /metrics, and its page elsewhere."""
    both = {"/metrics": (200, "[]"), "/prometheus/metrics": (200, pages.TRTLLM)}
    with web.serving(both) as url:
        report = look(url)

    assert report.url == f"{url}/prometheus/metrics"
    assert report.engines == ("TensorRT-LLM (trtllm-serve)",)


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        (pages.SGLANG, "SGLang"),
        (pages.TGI, "TGI"),
        (pages.LLAMA_CPP, "llama.cpp"),
        (pages.LITELLM, "LiteLLM"),
        (pages.LLM_D, "llm-d endpoint picker"),
        (pages.DCGM, "dcgm-exporter"),
    ],
)
def test_others_are_known_too(page, engine):
    """Engines, gateways and GPUs."""
    with web.serving({"/metrics": (200, page)}) as url:
        assert look(url).engines == (engine,)


def test_the_simulated_engine_answers_with_its_figures():
    """Asked for one token, it is seen to carry engine figures and the request's id."""
    with serve(ServerConfig()) as engine:
        found = settings(look(engine.root, ask=True))

    assert found["--enable-per-request-metrics"] == "set"
    assert found["--enable-request-id-headers"] == "set"


def test_an_answer_without_figures():
    """What was looked for and not seen is needed."""
    answers = {**VLLM, "/v1/models": (200, '{"data": [{"id": "tiny"}]}')}

    async def main() -> Report:
        async def bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split()[1]
                if head.startswith("POST"):
                    body = 'data: {"choices": [{"delta": {"content": "queue_time_ms"}}]}\n\n'
                    writer.write(web.answer(body, headers="x-request-id: other\r\n"))
                    length = int(head.lower().split("content-length:")[1].split()[0])
                    await reader.readexactly(length)
                else:
                    writer.write(web.answer(answers.get(path, (404, ""))[1]))

        async with web.listening(bare) as url:
            return await examine(url, ask=True)

    found = settings(asyncio.run(main()))
    assert found["--enable-per-request-metrics"] == "needed"
    assert found["--enable-request-id-headers"] == "needed"


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_one_table(capsys: pytest.CaptureFixture[str]):
    """Signals first, then settings; status 0 when nothing essential is missing."""
    with web.serving(VLLM) as url:
        status = cli.main(["doctor", url])

    out = capsys.readouterr().out
    assert status == 0
    assert "vLLM, version 0.32.0+cpu" in out
    assert out.index("queue") < out.index("--enable-per-request-metrics")


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]):
    """The same, for programs."""
    with web.serving(VLLM) as url:
        assert cli.main(["doctor", url, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["engines"] == ["vLLM"]
    assert {one["signal"]: one["state"] for one in found["signals"]}["ttft"] == "reported"


def test_the_command_fails_where_something_essential_is_missing(
    capsys: pytest.CaptureFixture[str],
):
    """The table is still there; the status says that something is wrong."""
    less = SCRAPE.replace("vllm:request_queue_time_seconds", "vllm:other")
    with web.serving({"/metrics": (200, less)}) as url:
        status = cli.main(["doctor", url])

    said = capsys.readouterr()
    assert status == 1
    assert "does not report queue" in said.err
    assert "no vllm:request_queue_time_seconds" in said.out


def test_a_signal_without_a_value_is_missing():
    """One that is NaN is listed, and lacks as one that is not there."""
    text = re.sub(r"(?m)^(vllm:kv_cache_usage_perc\S*) .*$", r"\1 NaN", SCRAPE)
    with web.serving({"/metrics": (200, text)}) as url:
        report = look(url)

    found = {one.signal: one for one in report.signals}["kv_usage"]
    assert (found.state, found.note) == ("missing", "no value (NaN, or cut) on the page")
    assert report.lacking == ("kv_usage",)


@pytest.mark.parametrize("models", [(404, ""), (200, "{}"), (200, '{"data": [{"id": "tiny"}]}')])
def test_a_request_that_fails_loses_no_report(models, capsys: pytest.CaptureFixture[str]):
    """The table is there, and then why `--ask` found nothing out; the status is 1."""
    with web.serving({**VLLM, "/v1/models": models}) as url:
        status = cli.main(["doctor", url, "--ask"])

    said = capsys.readouterr()
    assert status == 1
    assert "vLLM, version 0.32.0+cpu" in said.out
    assert "the request failed" in " ".join(said.out.split())
    assert f"error: {url}/v1/" in said.err


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "answered 404.*Known are.*SGLang --enable-metrics"),
        ({"/metrics": (200, "up 1\n")}, "is not a page of any known engine"),
        ({"/metrics": (200, "<html>hello</html>")}, "not a metrics page"),
    ],
)
def test_what_is_not_known(answers, words):
    """It says what was tried, and what is known."""
    with web.serving(answers) as url, pytest.raises(SourceError, match=words):
        look(url)


def test_nothing_listens_there(capsys: pytest.CaptureFixture[str]):
    """A server that is down is status 1, in one line."""
    with web.serving({}) as url:
        pass

    assert cli.main(["doctor", url]) == 1
    assert f"error: {url}/metrics: " in capsys.readouterr().err


@pytest.mark.parametrize("broken", [web.broken, web.always(b"SSH-2.0-OpenSSH_9.2\r\n")])
def test_what_broke_is_said_in_words(broken):
    """Not by the names of a library's errors."""

    async def main() -> None:
        async with web.listening(broken) as url:
            await examine(url)

    with pytest.raises(SourceError, match=r"the response (broke off|is not HTTP)"):
        asyncio.run(main())


def test_an_authority_of_ones_own(tmp_path: Path):
    """The error names what has it trusted, here and where a collector is asked."""
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def main() -> None:
        server = await asyncio.start_server(web.always(b""), "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wanted = "TLS failed: .*self-signed certificate .if your .* SSL_CERT_FILE"
        with pytest.raises(SourceError, match=wanted):
            await examine(url)
        with pytest.raises(SourceError, match=wanted):
            await asyncio.to_thread(Collector(url).get, "live")
        server.close()

    asyncio.run(main())


def test_a_server_that_hangs():
    """The time that one waits is bounded."""

    async def main() -> None:
        async with web.listening(web.silent) as url:
            await examine(url, timeout_s=0.2)

    with pytest.raises(SourceError, match=r"took longer than 0\.2 s"):
        asyncio.run(main())


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]):
    """A wrong option is status 2."""
    assert cli.main(["doctor", "engine:8000"]) == 2
    assert "is not an address such as http://engine:8000/metrics" in capsys.readouterr().err


def test_a_token_is_sent_and_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It comes from a file, so that it is in no process list."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    with web.serving(VLLM) as url:
        assert cli.main(["doctor", url, "--token-file", str(token)]) == 0
        assert cli.main(["doctor", url, "--token-file", str(tmp_path / "none")]) == 1

    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err
    assert "cannot read the token" in said.err


def test_a_profile_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An engine that is not built in is known by a file."""
    (tmp_path / "mine.yaml").write_text(
        "{engine: mine, title: My engine, kind: engine, path: /metrics, prefix: 'my:', "
        "recognise: ['my:jobs'], labels: {model: []}, "
        "signals: {running: [{name: 'my:jobs', evidence: seen}]}}"
    )
    with web.serving({"/metrics": (200, "my:jobs 3\n")}) as url:
        assert cli.main(["doctor", url, "--profiles", str(tmp_path)]) == 0
        assert cli.main(["doctor", url]) == 1
        assert cli.main(["doctor", url, "--profiles", str(tmp_path / "none")]) == 2

    assert "My engine" in capsys.readouterr().out


def test_without_the_collector(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """The command says what to install."""
    monkeypatch.delitem(sys.modules, doctor.__name__)
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    assert cli.main(["doctor", "http://127.0.0.1:1"]) == 2
    assert "pip install '.[collector]'" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "status"), [(0, 0), (3, 1)])
def test_a_collector_says_what_is_in_quarantine(count, status, capsys):
    """And it is a failure, which a check in CI or by cron sees."""
    ready = {"status": "ready"} | ({"quarantined_requests": count} if count else {})
    pages_of = {
        "/healthz": (200, json.dumps({"status": "alive"})),
        "/readyz": (200, json.dumps(ready)),
    }
    with web.serving(pages_of) as url:
        assert cli.main(["doctor", url]) == status

    said = capsys.readouterr()
    assert "llmtrace collector, ready" in said.out
    assert ("3 requests are in quarantine" in said.err) == bool(count)


def test_a_collector_that_is_not_ready_says_why(capsys):
    """It is still a collector, and no engine that lacks a page."""
    pages_of = {
        "/healthz": (200, json.dumps({"status": "alive"})),
        "/readyz": (503, json.dumps({"status": "not ready", "reason": "the disk is full"})),
    }
    with web.serving(pages_of) as url:
        assert cli.main(["doctor", url]) == 1

    assert "llmtrace collector, not ready: the disk is full" in capsys.readouterr().out


def test_a_collector_whose_join_fails_is_not_well(capsys):
    """Its requests do not become rows: exit status 1, for a check in CI or by cron."""
    ready = {"status": "ready", "problem": "join fails"}
    pages_of = {
        "/healthz": (200, json.dumps({"status": "alive"})),
        "/readyz": (200, json.dumps(ready)),
    }
    with web.serving(pages_of) as url:
        assert cli.main(["doctor", url]) == 1

    assert "join fails" in capsys.readouterr().err


def test_what_a_server_says_of_itself_moves_no_cursor(capsys):
    """It may be anyone's."""
    pages_of = {
        "/healthz": (200, json.dumps({"status": "alive"})),
        "/readyz": (200, json.dumps({"status": "\x1b[2Jready"})),
    }
    with web.serving(pages_of) as url:
        assert cli.main(["doctor", url]) == 0

    assert "\x1b" not in capsys.readouterr().out
