"""Which GPU a rank computes on, as CUDA names it."""

from __future__ import annotations

import torch


def gpu_uuid(device: torch.device) -> str:
    """UUID of the GPU behind `device`; "" for the CPU, and where torch or the driver does not tell."""
    if device.type != "cuda":
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
