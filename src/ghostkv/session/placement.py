"""Whether a model's chat template shows what a segment carries: asked once, when the model is loaded.

State block and recalled sentences stand in the last user message. A template is foreign code: one that
shortens, rewrites or moves what users write would lose them without a word, so it is refused here. What templates make
of system messages and of answers is their own affair, and what the tokenizer cannot express is no fault of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ghostkv.errors import InvalidRequest, ModelError
from ghostkv.protocol.render import Encode, Renderer, Template
from ghostkv.request import Message

Decode = Callable[[Sequence[int]], str]
"""Ids -> text, control tokens aside."""

_SYSTEM = Message("system", "Sentinel one: answer in whole sentences.")
_ASKED = Message("user", "Sentinel two: where are we?")
_ANSWERED = Message("assistant", "Sentinel three: in the archive.")
_QUESTION = " ".join(
    f"Part {i}: what was said in room {i} about the pressure of 68.2 kPa?\n\n- <b>A & B</b>  {{{{ 'x' }}}} \"q\""
    for i in range(40)
)
_LINES = tuple(f"The VALUE of unit AX-{i} is {i}.25 °C, not {i} < 3." for i in range(8))


def check_placement(template: Template, renderer: Renderer, encode: Encode, decode: Decode) -> None:
    """Raises ModelError if carried lines do not reach the model as they are, in the last user message."""
    for begun in (False, True):
        _check(template, renderer(_QUESTION, _LINES, begun=begun), encode, decode)


def _check(template: Template, content: str, encode: Encode, decode: Decode) -> None:
    shown = decode(_rendered(template, Message("user", content)))
    expected = decode(encode(content)).strip()
    at = shown.find(expected)
    if at < 0:
        raise ModelError(
            "the chat template does not show what users write as they wrote it, so nothing can be carried over a "
            f"segment's end: of a message of {len(expected)} characters it keeps the first {_kept(shown, expected)}"
        )
    if any(earlier.content in shown[at:] for earlier in (_ASKED, _ANSWERED)):
        raise ModelError("the chat template does not show the last user message after the earlier ones")


def _rendered(template: Template, question: Message) -> Sequence[int]:
    """The ids of the fullest conversation that the template takes: some have no system messages, some no answers."""
    refusal = InvalidRequest("")
    for earlier in ((_SYSTEM, _ASKED, _ANSWERED), (_ASKED, _ANSWERED), ()):
        try:
            return template((*earlier, question))
        except InvalidRequest as error:
            refusal = error
    raise ModelError(f"the chat template refuses a plain question: {refusal.message}") from refusal


def _kept(shown: str, expected: str) -> int:
    """The length of the longest beginning of `expected` that is shown."""
    least, most = 0, len(expected)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if expected[:middle] in shown else (least, middle - 1)
    return least
