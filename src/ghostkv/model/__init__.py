"""Everything that touches tensors: loaders, architectures, kernels, sampler, runner. The only importer of torch."""

import os

# torch and Numba each bring an OpenMP pool. Idle threads of one spin for about a millisecond by default and so keep the
# other's from the core: a step then takes up to 20 times as long beside any third busy process. 10,000 turns are some
# 30 us, longer than the gap between two kernels. Read once, when OpenMP loads; a value set by the user stays.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
