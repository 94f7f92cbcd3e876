"""Large memory: zeros, and where vectors start."""

from __future__ import annotations

import pytest
import torch

from ghostkv.model.large_pages import zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.int32])
@pytest.mark.parametrize("shape", [(3,), (2, 5, 7), (1, 1_500_000)])
def test_zeros_from_the_start_of_a_cache_line(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for _ in range(3):  # the allocator gives other places
        found = zeros(*shape, dtype=dtype, device=CPU)
        assert found.dtype == dtype and found.shape == shape and not found.any()
        assert found.data_ptr() % 64 == 0
        found += 1
        assert found.float().mean() == 1


def test_other_devices_have_their_own_memory() -> None:
    assert zeros(2, 3, dtype=torch.float32, device=torch.device("meta")).device.type == "meta"
