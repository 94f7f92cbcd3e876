"""Quality: what an answer keeps when its KV was flushed, beside the whole history. `report` runs all of it."""
