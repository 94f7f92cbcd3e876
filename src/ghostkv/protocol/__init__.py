"""Continuity in text and token ids: rules, structure, assembly, archive. Pure: no torch, no I/O, no clock."""
