"""Open URLs so that no secret meant for one server reaches another."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from llmtrace.core.errors import ConfigError

OWN_AUTHORITY: Final = "if your own authority signed it, name its certificate in SSL_CERT_FILE"
_MAX_TOKEN: Final = 4096
_MAX_CAUSES: Final = 64
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")  # characters a header can contain, and no space
_BASIC: Final = "Basic "
_TOKEN_OR_BASIC: Final = re.compile(rf"({_BASIC})?{_TOKEN.pattern}")


def opener(*, proxies: bool) -> urllib.request.OpenerDirector:
    """Return an opener of URLs that follows no redirect to another server.

    Args:
        proxies: whether to use those that the environment names.
    """
    handlers = () if proxies else (urllib.request.ProxyHandler({}),)
    return urllib.request.build_opener(*handlers, _Stay)


def is_address(text: str) -> bool:
    """Return whether a text is the address of something that HTTP reaches."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def read_authorization(path: Path, option: str) -> str:
    """Return the `Authorization` header in a file: `Basic ` text as it is, else a bearer token.

    `option` names the file in errors.

    Raises:
        ConfigError: the file holds neither.
    """
    text = read_token(path, option, allowed=_TOKEN_OR_BASIC)
    return text if text.startswith(_BASIC) else f"Bearer {text}"


def read_token(
    path: Path,
    option: str = "--token-file",
    what: str = "token",
    allowed: re.Pattern[str] = _TOKEN,
) -> str:
    """Return the token in a file, all of which `allowed` matches.

    `option` and `what` name the file, and what is in it, in errors.

    Raises:
        ConfigError: there is none in it.
    """
    try:
        if path.stat().st_size > _MAX_TOKEN:
            raise ConfigError(f"{option} {path}: larger than 4 KiB, which no {what} is")
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{option} {path}: cannot read the {what}: {reason}") from error
    if not allowed.fullmatch(token):
        raise ConfigError(f"{option} {path}: must contain one {what}, on one line, nothing else")
    return token


def unreachable(error: BaseException) -> str:
    """Return why a server could not be reached, in the words of the operating system.

    HTTP libraries wrap that several times, with pools, addresses of objects and retries around it.

    Example:
        >>> unreachable(OSError("pool", ConnectionRefusedError(111, "Connection refused")))
        'connection refused'
    """
    todo: list[object] = [error]
    for inner in todo:  # grows as causes are found
        if len(todo) > _MAX_CAUSES or not isinstance(inner, BaseException):
            continue
        if wrong := getattr(inner, "verify_message", ""):  # of a certificate
            return str(wrong)
        if isinstance(inner, OSError) and isinstance(inner.strerror, str):
            reason = re.sub(r"^\[[^\]]*\] | \(_ssl\.c:\d+\)$", "", inner.strerror)
            return f"{reason[:1].lower()}{reason[1:]}"
        todo += [inner.__cause__, inner.__context__, getattr(inner, "reason", None), *inner.args]
    return "the connection failed"
