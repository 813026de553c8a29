"""Let a browser sign in with the read token by a form, and recognise it by a cookie afterwards.

The cookie does not hold the token but is derived from it, so that a new token ends all sessions.
It is valid only for reading, and browsers do not send it with what other sites' pages load.
"""

from __future__ import annotations

import hmac
import re
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from llmtrace_collector.receive.auth import Secret, check_token
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.serve.page_frame import page_response, text

PATH: Final = "/sign-in"
_COOKIE: Final = "llmtrace_reader"
_MAX_BODY: Final = 8_192
# The addresses that the form may redirect to: only pages of this collector.
_OURS: Final = re.compile(r"(?:requests(?:[/?][^\\]*)?)?")


def _mark(token: str) -> str:
    return hmac.new(token.encode(), b"llmtrace reader", "sha256").hexdigest()


def is_signed_in(cookies: str | None, wanted: Secret) -> bool:
    """Return whether a request's cookies are those of a browser that has signed in."""
    token = wanted() if callable(wanted) else wanted
    if token is None or cookies is None:
        return False
    try:
        shown = SimpleCookie(cookies).get(_COOKIE)
    except CookieError:
        return False
    return shown is not None and hmac.compare_digest(
        shown.value.encode("utf-8", "replace"), _mark(token).encode()
    )


class SignIn:
    """The page with the form, and its handler."""

    def __init__(self, token: Secret) -> None:
        self._token = token

    async def answer(self, request: Request) -> Response:
        """Show the form, or check it and redirect to where the browser was."""
        if request.method != "POST":
            return _form(request.query_params.get("next", ""))
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BODY:
                return _form("", "That is too long for a token.", 413)
        fields = parse_qs(body.decode("utf-8", "replace"))
        following = _ours(fields.get("next", [""])[0])
        shown = fields.get("token", [""])[0].strip()
        try:
            check_token(f"Bearer {shown}", self._token)
        except RejectedError:
            return _form(following, "That is not the token.", 401)
        response = RedirectResponse(f"./{following}", 303)
        response.set_cookie(
            _COOKIE, _mark(shown), httponly=True, samesite="lax",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response


def _ours(following: str) -> str:
    return following if _OURS.fullmatch(following) else ""


def _form(following: str, problem: str = "", status: int = 200) -> Response:
    said = f'<p role="alert" class="bad">{text(problem)}</p>' if problem else ""
    body = (
        "<main><h1>Sign in</h1><p>This collector shows what it holds to those who have its token: "
        "the content of <code>access.token_file</code>.</p>"
        f'{said}<form method="post" action="sign-in">'
        f'<input type="hidden" name="next" value="{text(_ours(following))}">'
        '<label>Token <input type="password" name="token" required autofocus '
        'autocomplete="current-password"></label> <button>Sign in</button></form></main>'
    )
    return page_response("Sign in", body, status)
