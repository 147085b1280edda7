# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a run costs: log-probabilities without all logits in memory, and the plan of memory and FLOPs."""

CHUNKED = "chunked"
VERL_BACKENDS = ("torch", "triton", "liger")
# Values of fused_kernel_options.impl_backend.
BACKENDS = (CHUNKED, *VERL_BACKENDS)
CPU_BACKENDS = (CHUNKED, "torch")

DTYPE_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "auto": 2}
