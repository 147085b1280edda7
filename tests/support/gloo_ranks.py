# SPDX-License-Identifier: Apache-2.0
"""Runs a program on several gloo ranks of this machine, and ends one in a rank."""

import faulthandler
import importlib.util
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

from forked_workers import python
from kept_compositions import keep_compositions

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "results.pt"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(program: Path, arguments: list, folders: dict[int, Path], **environment: str) -> dict:
    """Call ``main(*ARGUMENTS, FOLDER)`` of a program on every rank.

    It is called for each number of ranks in ``folders`` in turn. The ranks are forks of one process
    that has imported the program, which takes longer than most programs do. Returns by number of
    ranks what :func:`finish` saved in the folder of that number.
    """
    import torch

    paths = [
        str(program.parent),
        str(Path(__file__).parent),
        str(ROOT),
        os.environ.get("PYTHONPATH"),
    ]
    known = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **environment,
    }
    words = [f"{n}={folder}" for n, folder in folders.items()]
    command = [python(), __file__, str(program), " ".join(words), *map(str, arguments)]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=900)
    logs = [
        log.read_text()[-3000:]
        for folder in folders.values()
        for log in sorted(folder.glob("rank*.log"))
    ]
    assert done.returncode == 0, "\n".join([*logs, done.stderr[-3000:]])
    return {n: torch.load(folder / RESULTS, weights_only=False) for n, folder in folders.items()}


def finish(results: object, work_dir: str) -> None:
    """Save what the first rank found, and leave together; every rank calls this."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        torch.save(results, Path(work_dir) / RESULTS)
    dist.barrier()
    dist.destroy_process_group()


def fork_rank(main, arguments: list[str], work_dir: str, rank: int) -> int:
    """Start a rank whose output goes to ``WORK_DIR/rankN.log``; returns its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        log = os.open(f"{work_dir}/rank{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        faulthandler.enable()
        main(*arguments, work_dir)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork_all(program: str, words: str, *arguments: str) -> int:
    keep_compositions()
    spec = importlib.util.spec_from_file_location(Path(program).stem, program)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for word in words.split(" "):
        number, _, work_dir = word.partition("=")
        os.environ.update(WORLD_SIZE=number, LOCAL_WORLD_SIZE=number, MASTER_PORT=str(free_port()))
        ranks = [
            fork_rank(module.main, list(arguments), work_dir, rank) for rank in range(int(number))
        ]
        statuses = [os.waitpid(rank, 0)[1] for rank in ranks]
        if any(statuses):
            print(f"statuses of the {number} ranks: {statuses}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(fork_all(*sys.argv[1:]))
