"""Do those who may send and read get in, over TLS, and no others?"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import grpc

from tests.support.certificates import self_signed

from .collecting import as_otlp, collecting, some_rows

TOKEN = "0123456789abcdef-secret"


def test_grpcs_own_lines_stay_out_of_the_log():
    """It reads how much to write when it is loaded, so that this is said before."""
    script = (
        "import os, sys; from llmtrace import cli; before = 'grpc' in sys.modules; "
        "cli.main(['collect', '--check']); "
        "print(before, 'grpc' in sys.modules, os.environ['GRPC_VERBOSITY'])"
    )
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )

    assert done.stdout.splitlines()[-1] == "False True ERROR"


def test_with_tokens_and_tls(tmp_path, capsys):
    """Senders and readers show theirs; everything speaks TLS; no token is printed."""
    (tmp_path / "send").write_text(TOKEN)
    (tmp_path / "read").write_text(TOKEN[::-1])
    certificate, key = self_signed(tmp_path)
    trust = ssl.create_default_context(cafile=certificate)

    def status(url: str, token: str | None, data: bytes | None = None) -> int:
        headers = {"Content-Type": "application/x-protobuf"} if data is not None else {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        asked = urllib.request.Request(url, data=data, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=60, context=trust) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    files = {"access_certificate": certificate.name, "access_key": key.name,
             "access_token_file": "read", "receive_token_file": "send"}  # fmt: skip
    variables = {name: str(tmp_path / file) for name, file in files.items()}
    with collecting(tmp_path / "data", **variables) as one:
        assert one.web.startswith("https://")
        spans = as_otlp(some_rows(1))
        assert status(f"{one.otlp}/v1/traces", TOKEN, spans) == 200
        assert status(f"{one.otlp}/v1/traces", None, spans) == 401
        assert status(f"{one.otlp}/v1/traces", TOKEN[::-1], spans) == 401
        assert status(f"{one.web}/api/v1/live", TOKEN[::-1]) == 200
        assert status(f"{one.web}/api/v1/live", TOKEN) == 401
        assert status(f"{one.web}/metrics", None) == 401
        assert status(f"{one.web}/readyz", None) == 200
        roots = certificate.read_bytes()
        with grpc.secure_channel(
            str(one.places.otlp_grpc), grpc.ssl_channel_credentials(roots)
        ) as channel:
            export = channel.unary_unary(
                "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
            )
            shown = [("authorization", f"Bearer {TOKEN}")]
            assert export(spans, metadata=shown, timeout=60) == b""
    assert TOKEN not in capsys.readouterr().err
