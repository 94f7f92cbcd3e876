"""The OpenAI-compatible server: the only place that knows JSON. Routes parse, call and serialise."""
