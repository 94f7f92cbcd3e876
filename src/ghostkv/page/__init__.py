"""The live page: what it remembers, and how it looks. A server runs without it."""
