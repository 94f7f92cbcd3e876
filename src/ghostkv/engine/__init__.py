"""Exact continuous batching over the block pool: what runs when, and who hears of it."""
