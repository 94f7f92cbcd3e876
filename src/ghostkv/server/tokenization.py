"""POST /tokenize and /detokenize, GET /tokenizer_info, in the shapes of vLLM's server.

They let a client count tokens, or send token ids, without a tokenizer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field, model_validator

from ghostkv.errors import InvalidRequest
from ghostkv.server.envelope import Json
from ghostkv.server.fields import Schema
from ghostkv.server.intake import parse
from ghostkv.server.logprobs import shown
from ghostkv.server.message_schema import ChatMessage
from ghostkv.server.models import check_model
from ghostkv.server.serving import Serving
from ghostkv.server.tool_schema import MOST_TOOLS, FunctionTool
from ghostkv.session.worker import Worker
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer

MOST_CHARACTERS = 2**20
MOST_TOKENS = 2**20


class TokenizeRequest(Schema):
    """POST /tokenize: a raw prompt, or a conversation under the model's chat template."""

    unsupported = frozenset({"chat_template", "chat_template_kwargs", "continue_final_message", "mm_processor_kwargs"})
    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] = Field(default_factory=list)
    add_special_tokens: bool | None = None  # a raw prompt's BOS, if the model's prompts have one; by default there
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("either prompt or messages is needed, and not both", param="prompt")
        if self.messages is not None and self.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens: the chat template writes the special tokens of messages",
                param="add_special_tokens",
            )
        texts = [self.prompt] if self.messages is None else [text for m in self.messages for text in m.message.texts]
        characters = sum(len(text or "") for text in texts)
        if characters > MOST_CHARACTERS:
            field = "prompt" if self.messages is None else "messages"
            raise InvalidRequest(
                f"{field} may have at most {MOST_CHARACTERS} characters, not {characters}", param=field
            )
        return self


class DetokenizeRequest(Schema):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=MOST_TOKENS)]


def tokenization_routes(serving: Serving) -> APIRouter:
    """The routes."""
    router, worker = APIRouter(), serving.worker
    source = worker.template
    template = ChatTemplate(source, worker.tokenizer) if source else None

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Json:
        """Text to token ids."""
        asked = await parse(request, TokenizeRequest)
        check_model(worker, asked.model or worker.name)
        return await asyncio.to_thread(_tokenized, worker, template, asked)

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Json:
        """Token ids to text; special tokens appear as their own strings."""
        asked = await parse(request, DetokenizeRequest)
        check_model(worker, asked.model or worker.name)
        return {"prompt": await asyncio.to_thread(_text, worker.tokenizer, asked.tokens)}

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> Json:
        """What a client needs to know to build prompts itself."""
        return _info(worker)

    return router


def _tokenized(worker: Worker, template: ChatTemplate | None, asked: TokenizeRequest) -> Json:
    tokenizer = worker.tokenizer
    if asked.messages is None:
        ids = _prompt_ids(tokenizer, asked.prompt or "", bos=asked.add_special_tokens is not False)
    else:
        ids = _message_ids(worker, template, asked)
    return {
        "count": len(ids),
        "max_model_len": worker.backend.capabilities().max_context,
        "tokens": ids,
        "token_strs": [shown(tokenizer, token_id) for token_id in ids] if asked.return_token_strs else None,
    }


def _prompt_ids(tokenizer: Tokenizer, text: str, *, bos: bool) -> list[int]:
    """The ids that a completion of `text` reads.

    Special-token strings in text are ordinary text. Only a prompt that is nothing but such a string, with
    add_special_tokens false, gives its id: so clients ask which id the string in /tokenizer_info has.
    """
    if not bos:
        named = tokenizer.control.get(text)
        return tokenizer.encode(text) if named is None else [named]
    return [*tokenizer.prefix, *tokenizer.encode(text)]


def _message_ids(worker: Worker, template: ChatTemplate | None, asked: TokenizeRequest) -> list[int]:
    messages = [message.message for message in asked.messages or ()]
    if asked.add_generation_prompt:
        tools = tuple(tool.tool for tool in asked.tools)
        return list(worker.context.template_of(tools)(messages))
    if asked.tools:
        raise InvalidRequest("add_generation_prompt: false cannot be had with tools", param="add_generation_prompt")
    if template is None:
        raise InvalidRequest("add_generation_prompt: this model's template is not known", param="add_generation_prompt")
    return template.render_ids(messages, add_generation_prompt=False)


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    bad = next((token_id for token_id in ids if not 0 <= token_id < tokenizer.vocab_size), None)
    if bad is not None:
        last = tokenizer.vocab_size - 1
        raise InvalidRequest(f"tokens: {bad} is not a token id: they run from 0 to {last}", param="tokens")
    control = {token_id: text.encode() for text, token_id in tokenizer.control.items()}
    parts = (control.get(token_id) or tokenizer.token_bytes(token_id) for token_id in ids)
    return b"".join(parts).decode("utf-8", errors="replace")


def _info(worker: Worker) -> Json:
    tokenizer = worker.tokenizer
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
        "eos_token": tokenizer.token_text(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
        "eos_token_ids": list(tokenizer.eos_ids),
        "pad_token": None,
        "add_bos_token": tokenizer.add_bos,
        "special_tokens": dict(tokenizer.control),
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": worker.backend.capabilities().max_context,
        "chat_template": worker.template or None,
        "digest": tokenizer.digest,
    }
