"""Text: tokenizer, chat template, incremental detokeniser, sentence boundaries. No torch."""
