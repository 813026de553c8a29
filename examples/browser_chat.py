"""A chat page that renders every token or every 50 ms, and the rows that show the difference."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import uvicorn
from engine import endpoint
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, StreamingResponse
from starlette.routing import Route

import llmtrace
from llmtrace.browser import Middleware

PAGE = Path(__file__).with_name("browser_chat.html")


class Printed:
    """Print each row once its page has reported the rest."""

    def write(self, row: llmtrace.Row) -> None:
        """Take one row."""
        page, stages = row.browser, row.stages
        if page is None:
            print(f"{row.route}: not reported by the page; e2e {row.e2e_s * 1e3:.0f} ms")
            return
        lag = "-" if page.paint_lag_ns is None else f"{page.paint_lag_ns / 1e6:.0f} ms"
        print(
            f"{row.route}: the user waited {row.e2e_s * 1e3:.0f} ms, "
            f"the server saw {(page.app_e2e_ns or 0) / 1e6:.0f}; "
            f"render {(stages.render or 0) / 1e6:.0f} ms, {page.paints} paints, "
            f"{lag} from token to screen"
        )


def make_app(url: str, model: str) -> Starlette:
    client = openai.AsyncOpenAI(
        base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0
    )

    async def chat(request: Request) -> StreamingResponse:
        stream = await ask(request.query_params.get("how", "fast"))

        async def events() -> AsyncIterator[str]:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield f"data: {json.dumps(chunk.choices[0].delta.content)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @llmtrace.trace
    async def ask(how: str) -> Any:
        llmtrace.annotate(route=how)
        return await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=120,
            stream=True,
        )

    async def page(_: Request) -> FileResponse:
        return FileResponse(PAGE)

    return Starlette(routes=[Route("/", page), Route("/chat", chat, methods=["POST"])])


with endpoint() as (url, model):
    llmtrace.init("browser-chat", exporters=[Printed()])
    app = Middleware(make_app(url, model))  # serves the script, takes the beacons, joins the rows
    port = int(os.environ.get("PORT", "8765"))
    print(f"open http://127.0.0.1:{port}/")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
