"""The lines that start a process group."""

SETUP = """
import datetime, os, sys
import torch
import torch.distributed as dist
from mercer import distributed as d
store, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=10)
)
"""
