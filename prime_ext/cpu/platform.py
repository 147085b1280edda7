# SPDX-License-Identifier: Apache-2.0
"""The platform ``cpu`` for verl's platform registry."""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class CPUDeviceId(str):
    """What verl calls the device id.

    verl 0.9.1 uses it as a device, ``tensor.to(get_device_id())``, and as an index,
    ``f"{get_device_name()}:{get_device_id()}"``. The string "cpu" serves the first use; formatting it as "0", so that
    the second gives "cpu:0", serves the other.
    """

    def __new__(cls) -> "CPUDeviceId":
        return super().__new__(cls, "cpu")

    def __format__(self, format_spec: str) -> str:
        return format("0", format_spec)

    def __reduce__(self):
        return (CPUDeviceId, ())


def _build_device_module() -> types.ModuleType:
    """``torch.cpu`` plus the members of ``torch.cuda`` that verl calls on a device module."""
    module = types.ModuleType("prime_ext.cpu.device_module")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))

    def do_nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def zero(*args: Any, **kwargs: Any) -> int:
        return 0

    members: dict[str, Any] = dict.fromkeys(
        ("empty_cache", "ipc_collect", "synchronize", "reset_peak_memory_stats", "set_device"), do_nothing
    )
    members |= dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), zero
    )
    members |= {
        # verl's helpers that report accelerator memory return early when this is False.
        "is_available": lambda: False,
        "device_count": lambda: 1,
        "mem_get_info": lambda *args, **kwargs: (0, 0),
        # verl looks the name up in its table of peak flops, which has an entry "CPU".
        "get_device_name": lambda *args, **kwargs: "CPU",
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """verl platform without an accelerator. Chosen by ``VERL_PLATFORM=cpu`` only, never by detection."""

    _device_module: types.ModuleType | None = None

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        if PlatformCPU._device_module is None:
            PlatformCPU._device_module = _build_device_module()
        return PlatformCPU._device_module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> CPUDeviceId:  # type: ignore[override]
        return CPUDeviceId()

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # Ray sets CUDA_VISIBLE_DEVICES for logical GPUs; a name of our own keeps verl from acting on it.
        return "PRIME_EXT_VISIBLE_CPU_SLOTS"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        # verl's ResourcePoolManager counts the Ray resources "GPU" and "NPU" only, so CPU mode uses logical GPUs.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
