"""Is what people set read as they meant it, and what is wrong reported with its fix?"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.config import schema
from llmtrace_collector.config.fields import leaves, variable
from llmtrace_collector.config.schema import Address, Config, as_yaml, exposed, load
from llmtrace_collector.scrape.targets import FileTargets, HttpTargets, StaticTargets
from tests.support.certificates import self_signed

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def written(tmp_path: Path):
    """Return what loads a configuration of this text, with nothing in the environment."""

    def load_text(text: str, environment: dict[str, str] | None = None, flags=None) -> Config:
        file = tmp_path / "collect.yaml"
        file.write_text(text, encoding="utf-8")
        return load(file, flags, environment or {})

    return load_text


def test_nothing_need_be_set():
    """It listens on loopback alone, keeps data where a user's programs do, and has a budget."""
    made = load(environment={})

    assert (made.listen.web, made.listen.otlp_http, made.listen.otlp_grpc) == tuple(
        Address("127.0.0.1", port) for port in (4319, 4318, 4317)
    )
    assert made.data.name == "llmtrace"
    assert made.store_place == f"chdb://{made.data}/store"
    assert [budget.name for budget in made.budget] == ["dialogue"]
    assert exposed(made) == []


def test_flags_win_over_variables_and_those_over_the_file(written):
    """The strongest says it."""
    text = "listen: {web: 1111, otlp_http: 2222}\ndata: there\n"
    made = written(text, {"LLMTRACE_COLLECT_LISTEN_WEB": "3333"}, {("listen", "web"): "4444"})

    assert made.listen.web == Address("127.0.0.1", 4444)
    assert made.listen.otlp_http == Address("127.0.0.1", 2222)
    assert written(text, {"LLMTRACE_COLLECT_LISTEN_WEB": "3333"}).listen.web.port == 3333
    assert made.data.is_absolute()
    assert made.data.name == "there"


def test_what_is_printed_gives_the_same_again(written, tmp_path):
    """The effective configuration is a configuration."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "more.json").write_text('[{"targets": ["c:1"]}]')
    made = written(
        "access: {token_file: token}\n"
        "scrape:\n  targets:\n  - http://user:hunter2@a:8000/metrics\n"
        "  - {targets: [b:1], labels: {x: y}}\n"
        "  files: [more.json]\n  http: [http://sd/targets]\n  interval: 5s\n  timeout: 4s\n"
        "listen: {otlp_grpc: off, web: '[::1]:80'}\n"
        "store: {url: 'https://reader@clickhouse:8443/llm', spans_days: 3}\n"
        "budget: {total: 2s, stages: {queue: 100ms}, model: 'llama-*'}\n"
    )
    text = as_yaml(made)
    again = written(text)

    assert "hunter2" not in text
    assert TOKEN not in text
    assert again.listen == made.listen
    assert again.budget == made.budget
    assert again.store == made.store
    assert again.scrape.sources()[1:] == made.scrape.sources()[1:]
    assert made.listen.otlp_grpc is None
    assert made.store.keep().spans == 3


def test_targets_of_every_kind(written, tmp_path):
    """Listed with labels, in files, from servers."""
    (tmp_path / "more.json").write_text('[{"targets": ["c:1"]}]')
    made = written(
        "scrape:\n  targets: [{targets: [a:1, b:2], labels: {zone: z}}, 'https://d/x']\n"
        "  files: more.json\n  http: http://sd/targets\n"
    )
    static, file, http = made.scrape.sources()

    assert isinstance(static, StaticTargets)
    assert [one.url for one in static.listed] == [
        "http://a:1/metrics", "http://b:2/metrics", "https://d/x",
    ]  # fmt: skip
    assert static.listed[0].labels == (("zone", "z"),)
    assert isinstance(file, FileTargets)
    assert isinstance(http, HttpTargets)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: {wep: 1}", "yaml:1: listen.wep: no such setting; did you mean listen.web"),
        ("\n\nlisten:\n  web: x:y", "collect.yaml:4: listen.web: 'x:y' is not an address"),
        ("listen: [1]", "listen: must hold settings"),
        ("listen: {web: 4318}", "listen.web and listen.otlp_http are both 127.0.0.1:4318"),
        ("listen: {web: off, otlp_http: off, otlp_grpc: off}", "nothing to do"),
        ("receive: {body_bytes: lots}", "receive.body_bytes: 'lots' is not a size such as 512MB"),
        ("store: {url: 'http://[::1/db'}", "store.url: not an address: Invalid IPv6 URL"),
        (f"receive: {{body_bytes: {'9' * 400}k}}", "is not a size such as 512MB"),
        ("receive: {body_bytes: 1GB}", "receive.body_bytes: 1073741824 is more than"),
        ("receive: {origins: [http://a/b]}", r"origins\[0\]: 'http://a/b' is not an origin"),
        ("spool: {sync: sometimes}", "'sometimes' is not one of always, interval, never"),
        ("store: {url: 'http://u:secret@h/d'}", "a password does not belong in an address"),
        ("store: {spans_days: 100}", "spans_days is more than store.rows_days"),
        ("scrape: {timeout: 20s}", "scrape.timeout: 20 is longer than scrape.interval, 15"),
        ("scrape: {targets: [ftp://a]}", r"scrape.targets\[0\]: 'ftp://a' is not an addr"),
        ("scrape: {targets: [{host: a}]}", r"scrape.targets\[0\]: no such setting: host"),
        ("scrape: {files: [gone.yaml]}", "gone.yaml: cannot read targets"),
        ("scrape: {gpu: maybe}", "'maybe' is not one of auto, on, off"),
        ("scrape: {profiles: nowhere}", "there is no folder"),
        ("access: {token_file: gone}", "access.token_file .*gone: cannot read the token"),
        ("access: {certificate: collect.yaml}", "go together: give both, or neither"),
        ("access: {certificate: collect.yaml, key: collect.yaml}", "not a PEM certificate"),
        ("metrics: {requests: 1}", "metrics.requests: 1 is neither true nor false"),
        ("budget: {total: soon}", "budget: budget: total: 'soon' is not a duration"),
        ("stop_after: 0", "stop_after: 0 is not a number of seconds from 0.1 to 3600"),
        ("- a", "a configuration is a mapping"),
        ("a: [", "not YAML"),
        ("listen: {}\nlisten: {}", "line 2: 'listen' is given twice, first in line 1"),
        ("data: 5", "data: 5 is not a text of one line"),
        ("data: '${DATA_DIR}'", r"data: \$\{DATA_DIR\}: variables are not expanded here"),
        ("listen: {web: '::1:4319'}", r"an IPv6 address is in brackets, such as \[::1\]:4319"),
        ("store: {disk_bytes: 1MB}", "store.disk_bytes: '1MB' is less than the minimum"),
        ("receive: {body_bytes: 0}", "receive.body_bytes: 0 is less than the minimum, 1 byte"),
        (
            "scrape: {targets: ['http://a/m', {targets: ['http://a/m'], labels: {b: c}}]}",
            "scrape.targets: http://a/m is listed twice with different settings",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported(written, text, words):
    """Where, what, and what would do."""
    with pytest.raises(ConfigError, match=words):
        written(text)


def test_the_default_timeout_of_a_scrape_follows_a_shorter_interval(written):
    """Who shortens one setting gets no error about another that they did not write."""
    timeouts = {
        text: written(f"scrape: {{{text}}}").scrape.settings().timeout_s
        for text in ("interval: 5s", "interval: 60s", "interval: 5s, timeout: 2s")
    }

    assert timeouts == {
        "interval: 5s": 5.0, "interval: 60s": 10.0, "interval: 5s, timeout: 2s": 2.0,
    }  # fmt: skip


def test_a_password_in_an_address_is_not_repeated(written):
    """Not even in the message that refuses it."""
    with pytest.raises(ConfigError) as raised:
        written("store: {url: 'http://u:hunter2@h/d'}")

    assert "hunter2" not in str(raised.value)


def test_a_variable_that_names_nothing(written):
    """A slip in the environment is reported as one in the file is."""
    with pytest.raises(ConfigError, match="did you mean LLMTRACE_COLLECT_LISTEN_WEB"):
        written("", {"LLMTRACE_COLLECT_LISTEN_WEBB": "1"})


def test_a_variable_that_is_not_yaml(written):
    """It is text, which a shell has freed of its quotes; also one that YAML takes for a date."""
    made = written("", {
        "LLMTRACE_COLLECT_LISTEN_WEB": "[::1]:4319", "LLMTRACE_COLLECT_DATA": "2026-13-01",
    })  # fmt: skip

    assert made.listen.web == Address("::1", 4319)
    assert made.data.name == "2026-13-01"


def test_an_empty_variable_is_as_if_it_was_not_set(written, tmp_path):
    """The folder of the data is not the one in which the collector happens to start."""
    for text in ("data: there", "data:"):
        made = written(text, {"LLMTRACE_COLLECT_DATA": ""})
        assert made.data == (tmp_path / "there" if "there" in text else load(environment={}).data)


def test_a_user_without_a_home_folder(written, monkeypatch):
    """Who says where the data are needs none; else the error says what to write."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}[0])

    assert written("data: /there").data == Path("/there")
    with pytest.raises(ConfigError, match=r"data: .*no such home folder; write"):
        written("")


def test_the_spool_may_leave_no_space_free(written):
    """Nought is a size, where there need be none."""
    assert written("spool: {free_bytes: 0}").spool.free_bytes == 0


def test_a_short_token_is_none(written, tmp_path):
    """What can be guessed guards nothing."""
    (tmp_path / "token").write_text("abc\n")
    with pytest.raises(ConfigError, match="16 characters at least"):
        written("access: {token_file: token}")
    target = "{targets: [a:1], token_file: token}"  # its engine's, which has chosen it
    assert written(f"scrape: {{targets: [{target}]}}").scrape.targets[0][0].credentials.token_file


def test_listening_beyond_this_machine_without_a_token_is_said(written, tmp_path):
    """It is refused, until a setting allows it; then it is reported at every start."""
    (tmp_path / "token").write_text(TOKEN)
    places = "web: '0.0.0.0:4319', otlp_grpc: '10.0.0.1:4317', otlp_http: '127.0.0.2:4318'"
    with pytest.raises(
        ConfigError, match=r"web is 0.*access\.token_file.*grpc is 10.*receive\.tok.*open: true"
    ):
        written(f"listen: {{{places}}}")
    open_ = written(f"listen: {{{places}, open: true}}")
    guarded = written("listen: {web: '0.0.0.0:4319'}\naccess: {token_file: token}")

    assert [said.partition(" ")[0] for said in exposed(open_)] == [
        "listen.web", "listen.otlp_grpc",
    ]  # fmt: skip
    assert exposed(guarded) == []
    assert written(as_yaml(open_)).listen == open_.listen
    with pytest.raises(ConfigError, match="others can reach it"):
        written("listen: {web: '127.example.org:4319'}")  # a name like an address of loopback


def test_every_setting_has_words_and_a_variable_of_its_own():
    """The documents are made of them."""
    found = [(key, words) for key, _, words in leaves(Config)]

    assert all(words for _, words in found)
    assert len({variable(schema.PREFIX, key) for key, _ in found}) == len(found)


def test_a_certificate_and_its_key(written, tmp_path):
    """What openssl makes is taken."""
    self_signed(tmp_path)
    made = written("access: {certificate: test.pem, key: test.key}")

    assert schema.tls(made) is not None
    assert schema.tls(written("")) is None
