# SPDX-License-Identifier: Apache-2.0
"""The platform ``cpu`` for verl's platform registry."""

import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class CPUDeviceId(str):
    """Device id for verl to use as a device, ``tensor.to(get_device_id())``, or index ("cpu:0")."""

    def __new__(cls) -> "CPUDeviceId":
        return super().__new__(cls, "cpu")

    def __format__(self, format_spec: str) -> str:
        return format("0", format_spec)

    def __reduce__(self):
        return (CPUDeviceId, ())


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: this has no meaning without an accelerator."""


def _build_device_module() -> types.ModuleType:
    """Return ``torch.cpu`` plus members of ``torch.cuda`` that verl calls on a device module."""
    module = types.ModuleType("prime_ext.verl_adapter.cpu.device_module")
    actions = ("empty_cache", "ipc_collect", "synchronize", "reset_peak_memory_stats", "set_device")
    sizes = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    members: dict[str, Any] = {
        name: member for name, member in vars(torch.cpu).items() if not name.startswith("__")
    }
    members |= dict.fromkeys(actions, _do_nothing) | dict.fromkeys(sizes, lambda *_, **__: 0)
    members |= {
        # verl's helpers that report accelerator memory return early when this is False.
        "is_available": lambda: False,
        "device_count": lambda: 1,
        "mem_get_info": lambda *_, **__: (0, 0),
        # verl looks the name up in its table of peak flops, which has an entry "CPU".
        "get_device_name": lambda *_, **__: "CPU",
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
    }
    vars(module).update(members)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """verl platform without accelerator, chosen by ``VERL_PLATFORM=cpu`` only, never detected."""

    device_name = vendor_name = "cpu"
    device_module = _build_device_module()
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    set_device = synchronize = set_allocator_settings = empty_cache = _do_nothing
    profiler_start = profiler_stop = cudart = _do_nothing

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> CPUDeviceId:
        return CPUDeviceId()

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # Ray sets CUDA_VISIBLE_DEVICES for logical GPUs; our own name keeps verl from using it.
        return "PRIME_EXT_VISIBLE_CPU_SLOTS"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        # verl's ResourcePoolManager counts only Ray's "GPU" and "NPU": CPU mode has logical GPUs.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
