# SPDX-License-Identifier: Apache-2.0
"""Starts a program on several gloo ranks of this machine, and ends one in a rank."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "results.pt"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(program: Path, arguments: list, work_dir: Path, n_ranks: int, **environment: str):
    """Run ``program *ARGUMENTS WORK_DIR`` on every rank; returns what :func:`finish` saved there."""
    paths = [str(program.parent), str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH")]
    shared = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "WORLD_SIZE": str(n_ranks),
        "LOCAL_WORLD_SIZE": str(n_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **environment,
    }
    command = [sys.executable, str(program), *map(str, arguments), str(work_dir)]
    logs = [work_dir / f"rank{rank}.log" for rank in range(n_ranks)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("w") as stream:
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=own, stdout=stream, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * n_ranks, "\n".join(log.read_text()[-3000:] for log in logs)
    return torch.load(work_dir / RESULTS, weights_only=False)


def finish(results: object, work_dir: str) -> None:
    """In a rank: save what the first one found, and leave together."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        torch.save(results, Path(work_dir) / RESULTS)
    dist.barrier()
    dist.destroy_process_group()
