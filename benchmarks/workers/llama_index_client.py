"""llama-index's OpenAILike against a server. Arguments: URL, a key, a key for one request a minute. Prints JSON.

Run by the client's own interpreter; it imports nothing of ghostkv.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

ASK = [ChatMessage(role="user", content="Name a moon of Jupiter.")]


def main() -> None:
    url, key, rare = sys.argv[1:4]

    def model(api_key: str = key, **more: Any) -> OpenAILike:
        settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "context_window": 8192, "max_retries": 0}
        settings |= {"is_chat_model": True, "api_base": url, "api_key": api_key}
        return OpenAILike("smollm2", **settings | more)

    chat = model().chat(ASK).message.content
    streamed = "".join(piece.delta or "" for piece in model().stream_chat(ASK))
    later = asyncio.run(model().achat(ASK)).message.content
    completion = model(is_chat_model=False).complete("One, two,").text
    assert chat and chat == streamed == later, (chat, streamed, later)
    assert "three" in completion, completion

    def kind(asked: OpenAILike, content: str) -> str:
        try:
            asked.chat([ChatMessage(role="user", content=content)])
        except Exception as error:  # noqa: BLE001 - its type is the result
            return f"{type(error).__module__.partition('.')[0]}.{type(error).__name__} {getattr(error, 'code', '')}"
        return "none"

    model(rare).chat(ASK)
    errors = {
        "overflow": kind(model(), "word " * 10_000),
        "rate limit": kind(model(rare), "Hi"),
        "authentication": kind(model("sk-not-a-key"), "Hi"),
    }
    print(json.dumps({"chat": chat, "completion": completion, "errors": errors}))


if __name__ == "__main__":
    main()
