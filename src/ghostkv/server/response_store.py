"""Finished responses, kept so that a later request can go on from one or ask for it. In memory, by tenant."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ghostkv.errors import PreviousResponseNotFound, ResponseNotFound
from ghostkv.request import Message

MOST_RESPONSES = 1000
"""Of one tenant."""
MOST_CHARACTERS = 16 * 2**20
"""Of one tenant's responses, with what was asked for each."""
_SHOWN = 100  # characters of a wrong id that an error repeats


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response as it was sent, and the conversation up to its end, without its instructions."""

    body: dict[str, Any]
    messages: tuple[Message, ...]
    characters: int  # that it added


@dataclass(slots=True)
class _Shelf:
    """One tenant's, the least recently used first."""

    responses: OrderedDict[str, StoredResponse]
    characters: int = 0


class ResponseStore:
    """Bounded for each tenant: the least recently used response makes room for a new one."""

    def __init__(self, most: int = MOST_RESPONSES, characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._characters = characters
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        """Responses of all tenants."""
        return sum(len(shelf.responses) for shelf in self._shelves.values())

    def put(self, tenant: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response. One that is too large for any room is not kept."""
        if stored.characters > self._characters:
            return
        shelf = self._shelves.setdefault(tenant, _Shelf(OrderedDict()))
        if (before := shelf.responses.pop(response_id, None)) is not None:
            shelf.characters -= before.characters
        shelf.responses[response_id] = stored
        shelf.characters += stored.characters
        while len(shelf.responses) > self._most or shelf.characters > self._characters:
            _, oldest = shelf.responses.popitem(last=False)
            shelf.characters -= oldest.characters

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """Raises ResponseNotFound."""
        shelf = self._shelves.get(tenant)
        found = shelf.responses.get(response_id) if shelf else None
        if shelf is None or found is None:
            raise ResponseNotFound(f"response with id {response_id[:_SHOWN]!r} not found")
        shelf.responses.move_to_end(response_id)
        return found

    def conversation(self, tenant: str, response_id: str | None) -> tuple[Message, ...]:
        """The messages that a request goes on from. Raises PreviousResponseNotFound."""
        if response_id is None:
            return ()
        try:
            return self.get(tenant, response_id).messages
        except ResponseNotFound as missing:
            raise PreviousResponseNotFound(
                f"previous {missing.message}: it was never stored (store: false), deleted, or made room for newer ones",
                param="previous_response_id",
            ) from None

    def delete(self, tenant: str, response_id: str) -> None:
        """Raises ResponseNotFound."""
        shelf, stored = self._shelves.get(tenant), self.get(tenant, response_id)
        if shelf is not None:
            del shelf.responses[response_id]
            shelf.characters -= stored.characters
