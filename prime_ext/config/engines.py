# SPDX-License-Identifier: Apache-2.0
"""Names of choices for verl's engines."""

CHUNKED = "chunked"
VERL_BACKENDS = ("torch", "triton", "liger")
# Values of fused_kernel_options.impl_backend.
BACKENDS = (CHUNKED, *VERL_BACKENDS)
CPU_BACKENDS = (CHUNKED, "torch")

DTYPE_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "auto": 2}
