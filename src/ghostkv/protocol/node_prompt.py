"""What a plan's node adds to the prompt, and what stands between two nodes in the answer. Pure functions of the plan.

A node's prompt is the conversation with one short note at the end of the question; what is carried to it is assembled
as for any segment.
"""

from __future__ import annotations

from dataclasses import replace

from ghostkv.protocol.plan import Plan
from ghostkv.protocol.render import Conversation
from ghostkv.request import Message

_BREAK = "\n\n"


def node_note(plan: Plan, index: int) -> str:
    """The instruction for one node; "" where the node is the whole answer and says nothing of its own."""
    node, count = plan.nodes[index], len(plan.nodes)
    said = [f"Write only part {index + 1} of {count}: {_ended(node.title)}"] if count > 1 else []
    if node.goal:
        said.append(_ended(" ".join(node.goal.split())))
    if node.heading:
        said.append("Its heading is already written.")
    if node.depends_on:
        said.append("Go on from the parts before it, and do not repeat them.")
    elif count > 1:
        said.append("The other parts are written separately.")
    return " ".join(said)


def noted(conversation: Conversation, note: str) -> tuple[Message, ...]:
    """The conversation's messages with `note` at the end of the question."""
    messages, at = conversation.messages, conversation.asking
    if not note:
        return messages
    asking = replace(messages[at], content=f"{messages[at].content}\n\n{note}")
    return (*messages[:at], asking, *messages[at + 1 :])


def joint(before: str, heading: str, after: str = "") -> str:
    """What stands between the text so far and a node's text: a blank line, and its heading if one was asked for.

    Line ends that `before` ends with count; so do those that `after` begins with, where no heading comes between.
    """
    had = len(before) - len(before.rstrip("\n")) if before else len(_BREAK)
    if not heading:
        had += len(after) - len(after.lstrip("\n"))
    gap = _BREAK[min(had, len(_BREAK)) :]
    return f"{gap}{heading}{_BREAK}" if heading else gap


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!", "\u2026")) else f"{sentence}."
