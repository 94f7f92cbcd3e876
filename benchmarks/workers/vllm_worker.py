"""vLLM (CPU) as a peer: greedy, exactly `tokens` each, its defaults but for the settings below.

Arguments: Hugging Face directory, KV bytes. Run by the peer's own interpreter; it imports nothing of ghostkv.
"""

from __future__ import annotations

import sys

from vllm import LLM, SamplingParams, __version__

from protocol import serve


def main() -> None:
    settings = {
        "dtype": "bfloat16",
        "max_model_len": 8192,
        "enable_prefix_caching": False,  # as ghostkv runs here: every prompt is computed
        "max_num_seqs": 128,
        "kv_cache_memory_bytes": int(sys.argv[2]),
        "block_size": 32,
    }
    llm = LLM(model=sys.argv[1], **settings)

    def run(rows: list[list[int]], tokens: int) -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=True)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in rows], sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    vocab = llm.llm_engine.model_config.get_vocab_size()
    serve(run, vocab, {"engine": "vllm", "version": __version__, **settings})


if __name__ == "__main__":
    main()
