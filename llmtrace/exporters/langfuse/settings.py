"""The Langfuse project that rows go to, and its name for this deployment.

By the variables Langfuse's own SDK reads. Everything wrong with them is said at set-up; the secret
key is never shown.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from llmtrace.core.errors import ConfigError
from llmtrace.exporters.langfuse.span_attributes import ENVIRONMENT, RELEASE
from llmtrace.exporters.otlp.settings import OtlpSettings

_CLOUD: Final = "https://cloud.langfuse.com"
_TRACES: Final = "/api/public/otel/v1/traces"
_TIMEOUT_S: Final = 5.0
_ENVIRONMENT: Final = re.compile(r"(?!langfuse)[a-z0-9_-]{1,40}")
# Where the services that build and deploy say what was built.
_RELEASES: Final = (
    "LANGFUSE_RELEASE", "RENDER_GIT_COMMIT", "CI_COMMIT_SHA", "CIRCLE_SHA1", "SOURCE_VERSION",
    "TRAVIS_COMMIT", "GIT_COMMIT", "GITHUB_SHA", "BITBUCKET_COMMIT", "BUILD_SOURCEVERSION",
    "DRONE_COMMIT_SHA",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A Langfuse project, checked. The secret key stays out of the `repr`.

    Attributes:
        url: base URL of the server, without a slash at its end.
        timeout_s: of one request.
    """

    public_key: str
    secret_key: str = field(repr=False)
    url: str = _CLOUD
    timeout_s: float = _TIMEOUT_S


def read_project(environ: Mapping[str, str] = os.environ) -> Project:
    """Read which project a process belongs to from its `LANGFUSE_*` variables.

    Raises:
        ConfigError: one is missing, or holds what cannot be; the message names it.
    """
    keys = {}
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
        keys[name] = environ.get(name, "").strip()
        if not keys[name]:
            msg = f"{name} is not set; Langfuse shows it under Settings, API Keys of a project"
            raise ConfigError(msg)
        if not (keys[name].isascii() and keys[name].isprintable()):
            raise ConfigError(f"{name} has characters that no key has; copy it again")
    public, secret = keys.values()
    if public.startswith("sk-") or secret.startswith("pk-"):
        raise ConfigError(
            "LANGFUSE_PUBLIC_KEY is the one that begins with pk-lf-, LANGFUSE_SECRET_KEY the one "
            "with sk-lf-: check which is which"
        )
    return Project(
        public_key=public, secret_key=secret, url=_url(environ), timeout_s=_timeout(environ)
    )


def _url(environ: Mapping[str, str]) -> str:
    name = next((one for one in ("LANGFUSE_BASE_URL", "LANGFUSE_HOST") if environ.get(one)), None)
    if name is None:
        return _CLOUD
    url = environ[name].strip().rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or "@" in parts.netloc:
        # What it holds is not shown: it may have a password in it.
        msg = f"{name} is not a URL without a password, such as {_CLOUD} or http://localhost:3000"
        raise ConfigError(msg)
    return url


def _timeout(environ: Mapping[str, str]) -> float:
    text = environ.get("LANGFUSE_TIMEOUT", "").strip()
    if not text:
        return _TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"LANGFUSE_TIMEOUT={text!r} is not a time-out; give seconds, such as 5")
    return seconds


def to_otlp(project: Project, environ: Mapping[str, str] = os.environ) -> OtlpSettings:
    """Return where the project takes spans, and with which headers.

    Raises:
        ConfigError: a variable holds what cannot be; the message names it.
    """
    compression = environ.get("LANGFUSE_OTEL_COMPRESSION", "").strip().lower() or "gzip"
    if compression not in {"gzip", "none"}:
        msg = f"LANGFUSE_OTEL_COMPRESSION={compression!r}: Langfuse takes gzip or none"
        raise ConfigError(msg)
    path = environ.get("LANGFUSE_OTEL_TRACES_EXPORT_PATH", "").strip().lstrip("/")
    token = base64.b64encode(f"{project.public_key}:{project.secret_key}".encode()).decode()
    return OtlpSettings(
        protocol="http/protobuf",
        url=f"{project.url}/{path}" if path else project.url + _TRACES,
        headers={
            "authorization": f"Basic {token}",
            # Without it, what is sent shows up in Langfuse only after minutes.
            "x-langfuse-ingestion-version": "4",
        },
        timeout_s=project.timeout_s,
        gzip=compression == "gzip",
    )


def read_labels(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment and release that every span of this process belongs to.

    Raises:
        ConfigError: the environment's name is not one that Langfuse takes.
    """
    labels = {}
    if environment := environ.get("LANGFUSE_TRACING_ENVIRONMENT", "").strip():
        if not _ENVIRONMENT.fullmatch(environment):
            raise ConfigError(
                f"LANGFUSE_TRACING_ENVIRONMENT={environment!r}: Langfuse takes up to 40 lower-case"
                " letters, digits, - and _, and no name that begins with langfuse"
            )
        labels[ENVIRONMENT] = environment
    release = next((environ[name] for name in _RELEASES if environ.get(name)), None)
    if release is not None:
        labels[RELEASE] = release
    return labels
