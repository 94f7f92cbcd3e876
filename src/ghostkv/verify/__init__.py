"""Whether an answer keeps its bits whatever happens around it: the table of `ghostkv verify`."""
