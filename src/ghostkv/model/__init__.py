"""Everything that touches tensors: loaders, architectures, kernels, sampler, runner. The only importer of torch."""

import os

# Idle OpenMP threads spin for some milliseconds by default, which keeps the core from whatever else runs: beside one
# busy process a step of 8 rows then takes 20 times as long, at 10,000 turns four times, at 1,000 a third more. 1,000
# turns are some 10 us, as long as the gap between two kernels; alone on the machine nothing is slower by them. Read
# once, when OpenMP loads; a value set by the user stays. See also `threads.on_passing_thread`.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
