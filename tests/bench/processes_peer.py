# SPDX-License-Identifier: Apache-2.0
"""A peer of run_processes.py: the same all-reduce by Gloo through PyTorch, started by trek-run. Arguments: bytes, times."""
import os
import sys
import time

import torch
import torch.distributed as dist

rank, world = int(os.environ["TREK_RANK"]), int(os.environ["TREK_WORLD_SIZE"])
count, times = int(sys.argv[1]) // 4, int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"tcp://127.0.0.1:{os.environ['TREK_PORT']}")
pattern = (torch.arange(count) % 1000).float()
values, line, wrong = torch.empty(count), [], 0
for _ in range(times):
    torch.mul(pattern, rank + 1, out=values)
    dist.barrier()
    begin = time.perf_counter_ns()
    dist.all_reduce(values)
    line.append(time.perf_counter_ns() - begin)
    wrong += int((values != pattern * (world * (world + 1) // 2)).sum())
if rank == 0:
    print(*line, wrong, flush=True)
dist.destroy_process_group()
