"""The decisions of a turn without its I/O: what each segment asks for, and what is carried from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from ghostkv.backends.base import Capabilities
from ghostkv.errors import ContextLengthExceeded, InvariantViolation
from ghostkv.protocol.condense import condense
from ghostkv.protocol.facts import Position
from ghostkv.protocol.payload import Cursor
from ghostkv.protocol.reader import Reader
from ghostkv.protocol.render import (
    Assembled,
    Completion,
    Conversation,
    Encode,
    Prompting,
    Selection,
)
from ghostkv.protocol.rules import next_segment, openings
from ghostkv.protocol.state import NO_BLOCK, Block, Need, Room, choose_lines
from ghostkv.protocol.tail import choose_tail
from ghostkv.protocol.transition import Memory, OpenText, Transition, close
from ghostkv.request import Finish, FinishReason, GenerationState, Message, SegmentRequest, SegmentUsage
from ghostkv.residency import Policy, SegmentBudget
from ghostkv.session.context import TurnContext, policy_of, rules_of, terminators
from ghostkv.session.fit import check_structure, check_turn, whole_fits
from ghostkv.session.turn import LongPrompt, Turn
from ghostkv.text.tool_markup import CALL_CLOSES

_LINES = 1024  # encodings of lines that a turn keeps
_LONGEST_LINE = 400  # characters
_SEAM = 2  # tokens by which text may grow where it is joined to other text


@dataclass(frozen=True, slots=True)
class Carried:
    """What outlives a segment."""

    state: GenerationState
    memory: Memory
    open_text: OpenText
    cursor: Cursor
    block: Block = NO_BLOCK  # what the last prompt showed of the memory
    density: float = 0.0  # of the last segment


Closed = Callable[[Carried], None]
"""Is told what each closed segment leaves, before its record is streamed."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The part of a message that was left out of its condensed form."""

    message: int
    offsets: range  # characters
    tokens: int  # of the client's prompt


@dataclass(frozen=True, slots=True)
class Chain:
    """One turn, checked and ready to run."""

    turn: Turn
    context: TurnContext
    capabilities: Capabilities
    policy: Policy
    prompting: Prompting
    prompt: tuple[int, ...]  # the client's whole prompt
    head_tokens: int  # the part of it that stands in every segment
    condensed: Hidden | None = None

    @classmethod
    def of(cls, turn: Turn, context: TurnContext, capabilities: Capabilities) -> Chain:
        """Raises InvalidRequest, ContextLengthExceeded among them, for a turn that could not run to its end."""
        chosen, context = policy_of(turn, context), replace(context, encode=_remembered(context.encode))
        if turn.prompt:
            completion = Completion(turn.prompt, context.encode, context.renderer)
            chain = cls(turn, context, capabilities, chosen, completion, turn.prompt, len(turn.prompt))
            chain.check()
            return chain
        chain = cls._conversing(turn, context, capabilities, chosen)
        try:
            chain.check()
        except ContextLengthExceeded:
            if turn.long_prompt is not LongPrompt.CONDENSE or chosen.budget is None:
                raise
            chain = chain.shortened()
            chain.check()
        return chain

    @classmethod
    def _conversing(cls, turn: Turn, context: TurnContext, capabilities: Capabilities, chosen: Policy) -> Chain:
        template = context.template_of(turn.tools)

        # A turn renders the same few selections of its messages at every boundary.
        @cache
        def memo(messages: tuple[Message, ...]) -> tuple[int, ...]:
            return tuple(template(messages))

        conversation = Conversation.of(turn.messages, lambda messages: memo(tuple(messages)), context.renderer)
        head_tokens = len(memo(conversation.head))
        return cls(turn, context, capabilities, chosen, conversation, memo(turn.messages), head_tokens)

    def shortened(self) -> Chain:
        """The chain with the middle of its question left to ledger and recall."""
        messages = self.turn.messages
        longest = Conversation.of(messages, self.context.template).longest
        shorter = condense(messages[longest].content, self._cost)
        kept = (*messages[:longest], replace(messages[longest], content=shorter.content), *messages[longest + 1 :])
        chain = Chain._conversing(replace(self.turn, messages=kept), self.context, self.capabilities, self.policy)
        tokens = len(self.prompt) - len(chain.prompt)
        hidden = Hidden(longest, range(shorter.start, shorter.stop), tokens)
        return replace(chain, turn=self.turn, prompt=self.prompt, condensed=hidden)

    def check(self) -> None:
        """Raises ContextLengthExceeded, naming the numbers, if some segment could never run."""
        (check_turn if self.turn.grammar is None else check_structure)(
            self.policy,
            self.capabilities,
            prompt=len(self.prompt),
            head=self.head_tokens,
            max_tokens=self.turn.max_tokens,
            param="prompt" if self.turn.prompt else "messages",
        )

    @property
    def exact(self) -> bool:
        """Whether a segment is exact for its prompt: on an exact backend, where every token sees all before it."""
        return self.capabilities.exact and self.policy.visible is None

    @property
    def begins_whole(self) -> bool:
        """Whether the first segment's prompt is the client's whole one: where the policy wants that and it fits.

        A record of decisions says what was done; then that is done again, or refused.
        """
        budget, turn = self.policy.budget, self.turn
        if budget is None or not budget.whole or self.condensed is not None:
            return False
        if turn.replay is not None:
            return 0 not in turn.replay
        return whole_fits(budget, self.capabilities, prompt=len(self.prompt), max_tokens=turn.max_tokens)

    @property
    def begins_short(self) -> bool:
        """Whether the first segment's prompt had to be assembled although the policy would read the whole one."""
        budget = self.policy.budget
        return budget is not None and budget.whole and not self.begins_whole

    def begin(self) -> Carried:
        """What the first segment starts from."""
        given = self._given()
        memory = Memory()
        if self.policy.budget is not None:
            memory = self.context.histories.memory(given, self.turn.tenant, self.turn.payload_budget)
        return Carried(
            state=GenerationState(
                client_ids=frozenset(self.prompt), rules=rules_of(self.turn, self.context, self.policy.budget)
            ),
            memory=memory,
            open_text=OpenText(Reader(len(given), "assistant", self.turn.sampling.node)),
            cursor=Cursor(len(given), self.turn.sampling.node),
        )

    @property
    def condensed_tokens(self) -> int:
        """Tokens of the client's prompt that were left to ledger and recall because the question is too long."""
        return 0 if self.condensed is None else self.condensed.tokens

    def select(self, carried: Carried) -> Selection:
        """The client's part of the next segment's prompt."""
        budget = self.policy.budget
        if budget is None:
            return self.prompting.select(None)
        if self.begins_whole and not carried.cursor.segment and not carried.memory.archive.total:
            return self.prompting.select(None)
        remaining, context = self.turn.max_tokens - carried.state.emitted, self.capabilities.max_context
        allowed = budget.allowance(head=self.head_tokens, remaining=remaining, context=context)
        return self.prompting.select(allowed, self._least_tail(budget, carried))

    def recall(self, carried: Carried, selection: Selection) -> Block:
        """State block and recalled sentences for the next segment: what it is likely to need and does not show."""
        budget = self.policy.budget
        if budget is None or selection.free is None:
            return NO_BLOCK
        least = self._least_tail(budget, carried)
        tail_text = self._text(carried.memory.archive.ids[carried.memory.archive.total - least :])
        overhead = self._cost(self.context.renderer("", ("",), begun=True)) + _SEAM
        room = Room.of(max(0, selection.free - least - overhead), budget.state, budget.recall)
        question = self.prompting.question
        need = Need.to_go_on(question, tail_text) if tail_text else Need.to_answer(question)

        def choose(tail: str) -> Block:
            shown = self._shown(carried, selection, carried.open_text.length - len(tail))
            return choose_lines(
                carried.memory, need, lambda sentence: shown(sentence.position), room, self._cost, carried.block
            )

        block = choose(tail_text)
        longer = self._text(self._tail(carried, selection, block))
        shown = self._shown(carried, selection, carried.open_text.length - len(longer))
        # The sentence in which the least tail begins fits its words best, but mostly the tail becomes longer.
        return choose(longer) if any(shown(line.position) for line in block.lines) else block

    def render(self, carried: Carried, selection: Selection, block: Block) -> Assembled:
        """The prompt of the next segment. Room that no line took makes the tail longer."""
        tail = self._tail(carried, selection, block)
        return self.prompting.compose(selection, block, tail)

    def assemble(self, carried: Carried) -> Assembled:
        """The prompt of the next segment, all steps at once."""
        selection = self.select(carried)
        return self.render(carried, selection, self.recall(carried, selection))

    def request(self, index: int, assembled: Assembled, carried: Carried) -> SegmentRequest:
        """Segment `index` as the engine sees it."""
        return SegmentRequest(
            id=f"{self.turn.id}.{index}",
            prompt=assembled.ids,
            sampling=replace(self.turn.sampling, terminators=terminators(self.turn, self.context)),
            state=carried.state,
            residency=self.policy,
            remaining=self.turn.max_tokens - carried.state.emitted,
            tenant=self.turn.trust,
            steering=self.turn.steering,
            grammar=self.turn.grammar,
            scores=self.turn.scores,
            account=self.turn.tenant,
            program=self.turn.program,
            flushed_prompt=self._flushed_prompt(carried),
            repeatable=self.turn.repeatable,
        )

    def _flushed_prompt(self, carried: Carried) -> int:
        """Tokens of the prompt after a flush at the next boundary; 0 where nothing is to be weighed."""
        budget, turn = self.policy.budget, self.turn
        if budget is None or not budget.whole or turn.replay is not None or turn.grammar is not None:
            return 0
        emitted = carried.state.emitted
        remaining, context = turn.max_tokens - emitted, self.capabilities.max_context
        return budget.flushed(head=self.head_tokens, emitted=emitted, remaining=remaining, context=context)

    def extract(self, carried: Carried, ids: Sequence[int], finish: Finish) -> Transition:
        """Read a closed segment that generated `ids`."""
        final = finish.reason is not FinishReason.FLUSH
        if not final and self.policy.budget is None:
            raise InvariantViolation(
                f"residency {self.policy.name!r} never flushes, but the engine flushed {self.turn.id}"
            )
        archived = [token_id for token_id in ids if token_id not in self.context.eos_ids]
        cursor = replace(carried.cursor, segment=carried.cursor.segment + 1)
        answer = carried.memory.archive.ids.extended(archived)
        still_open = openings(finish.state.rules)
        lines = tuple(self._text(answer[opening.first : opening.last + 1]) for opening in still_open)
        return close(carried.open_text, archived, self.context.token_bytes, cursor, openings=lines, final=final)

    def merge(self, carried: Carried, transition: Transition, finish: Finish, assembled: Assembled) -> Carried:
        """What the next segment starts from, after one whose prompt was `assembled`."""
        return Carried(
            state=replace(finish.state, rules=next_segment(finish.state.rules)),
            memory=carried.memory.add(transition, self.turn.payload_budget),
            open_text=transition.open_text,
            cursor=transition.delta.cursor,
            block=assembled.block,
            density=transition.density,
        )

    def calls(self, ids: Sequence[int]) -> bool:
        """Whether an answer that ended by itself asks for tools. One that may is never cut, so `ids` are all of it."""
        return bool(self.turn.tools) and CALL_CLOSES in self._text(ids)

    def resident(self, filled: int) -> int:
        """Tokens that a request holds in the pool when `filled` of its tokens were computed."""
        return filled if self.policy.visible is None else min(filled, self.policy.visible.size)

    def live_kv_bytes(self, usage: SegmentUsage) -> int:
        """Bytes of the whole blocks that a segment's tokens filled at its end."""
        block = self.capabilities.block_tokens
        return -(-usage.resident_tokens // block) * block * self.capabilities.kv_bytes_per_token

    def _given(self) -> tuple[Message, ...]:
        """What the client sent, as messages."""
        if self.turn.prompt:
            return (Message("user", self._text(self.turn.prompt)),)
        return self.turn.messages

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.context.token_bytes, ids)).decode("utf-8", errors="replace")

    def _cost(self, text: str) -> int:
        return len(self.context.encode(" " + text))

    def _tail(self, carried: Carried, selection: Selection, block: Block) -> tuple[int, ...]:
        """The end of the open answer, as much as fits beside `block`."""
        budget = self.policy.budget
        if budget is None or selection.free is None or not carried.memory.archive.total:
            return ()
        lines = self._cost(self.context.renderer("", block.texts, begun=True)) + _SEAM if block.lines else 0
        limit = max(self._least_tail(budget, carried), selection.free - lines)
        return choose_tail(carried.memory.archive.ids, self.context.token_bytes, limit, openings(carried.state.rules))

    def _shown(self, carried: Carried, selection: Selection, start: int) -> Callable[[Position], bool]:
        """Whether a prompt shows what stands at a position, if its tail begins at character `start` of the answer."""

        def shown(at: Position) -> bool:
            if at.message == carried.cursor.message:
                return at.node == carried.cursor.node and at.offset >= start
            hidden = self.condensed
            if hidden is not None and at.message == hidden.message and at.offset in hidden.offsets:
                return False
            return at.message in selection.visible

        return shown

    def _least_tail(self, budget: SegmentBudget, carried: Carried) -> int:
        """Tokens of the tail that come before all other claims but the head."""
        return min(budget.tail, carried.memory.archive.total)


def _remembered(encode: Encode) -> Encode:
    """`encode` with its latest lines kept: every boundary asks for the costs of mostly the same sentences.

    For one turn only: the time that a line takes must not tell whether another tenant has it too.
    """

    @lru_cache(maxsize=_LINES)
    def line(text: str) -> tuple[int, ...]:
        return tuple(encode(text))

    return lambda text: line(text) if len(text) <= _LONGEST_LINE else encode(text)
