"""Bookkeeping of KV blocks: who holds which, and which can be found again."""
