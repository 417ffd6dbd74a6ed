"""Table 9: transfer of a trained backbone to other classes (Appendix D.2).

The paper fine-tunes an ImageNet ResNet-50 on pets and cars; so does the paper scale, with a local file of its weights
and local folders of the pictures. Below it a ResNet-20 trained on CIFAR-10 stands in, frozen, with CIFAR-100's twenty
superclasses and hundred classes: 2,000 pictures, or with ``--set rows=45000`` the kept embeddings of its 50,000
training pictures, 5,000 of which are scored. Every head has the best of several rates on held-out training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mercer.kernels import RadialSeries
from mercer.nn import KernelClassifier, kernelize
from mercer.signals.embedding import embeddings
from mercer.storage.archives import read_npz

from .. import data
from ..catalogue import Entry
from ..cells import Cell, Outcome
from ..data import normalised, published_resnet20
from ..data.resnet import imagenet_resnet50
from ..data_files import SOURCES, data_folder, locate
from .heads import choose_best, make_head, train_head
from .trained import accuracy, cifar, fit

_MERCER, _DEFAULT, _AUTO = "Mercer's head", "Mercer's default head", "Mercer, auto prototypes"
_HEADS = ("Softmax", "Softmax, scale 10", "LIN", "SOP", "Kernelized", _MERCER, _DEFAULT, _AUTO, "MLP 256")
_RATES = (0.001, 0.005, 0.02, 0.08, 0.3, 1.0)
_PICTURES = 2000  # of the subset; beyond, embeddings of a file
_EMBEDDINGS = "cifar100_resnet20_embeddings.npz"
_SCORED = 5000  # of that file's rows, the last
_DECAY = 1e-4
_ROWS_OF_A_PROTOTYPE = 60  # by a held-out quarter of CIFAR-100's superclasses: fewer rows each overfit
_PAPER = {"Oxford-IIIT Pets": "oxford_pets", "Stanford Cars": "stanford_cars"}
_STAND_INS = {"CIFAR-100, 20 superclasses": "coarse", "CIFAR-100, 100 classes": "fine"}


def cells(entry: Entry, scale: str) -> list[Cell]:
    """Every head on both targets; at paper scale ResNet-50 is fine-tuned, where its weights and the sets are there."""
    if scale == "paper":
        settings = {"backbone": "ResNet-50 of ImageNet", "rows": None, "test_rows": None, "epochs": 90, "batch": 64,
                    "rates": [0.1, 0.03, 0.01, 0.003]}  # fmt: skip
        return [
            Cell(
                entry.id, row=row, column=head, data=(name,), seeds=1, settings={**settings, "set": name, "head": head}
            )
            for row, name in _PAPER.items()
            for head in ("Softmax", "Softmax, scale 10", "LIN", "SOP", "Kernelized", _MERCER)
        ]
    cells = []
    for row, labels in _STAND_INS.items():
        for head in _HEADS:
            if scale == "smoke":
                settings = {"labels": "synthetic", "head": head, "rows": 40, "epochs": 2, "batch": 64}
                cells.append(Cell(entry.id, row, head, settings, seeds=1))
            else:
                settings = {"labels": labels, "head": head, "rows": _PICTURES, "epochs": 30, "batch": 64}
                cells.append(Cell(entry.id, row, head, settings, ("cifar100_subset",), seeds=3))
    return cells


def run(cell: Cell) -> Outcome:
    """Train a head on the frozen embeddings of the training part; accuracy on the test part."""
    if "labels" not in cell.settings:
        return _run_fine_tuning(cell)
    s = cell.settings
    z, y, z_test, y_test = _compute_embeddings(s["labels"], s["rows"])
    classes = int(y.max()) + 1
    rate = _rate(s["head"], s["labels"], s["rows"], s["epochs"], s["batch"], cell.device)
    logits = fit_head(
        s["head"], z, y, classes, epochs=s["epochs"], seed=cell.seed, lr=rate, batch=s["batch"], device=cell.device
    )
    note = f"Stand-in: frozen ResNet-20 of CIFAR-10, {len(z)} rows; rate {rate:g}, the best of {len(_RATES)}."
    return Outcome(value=100 * _accuracy(logits, z_test, y_test), note=note)


def _run_fine_tuning(cell: Cell) -> Outcome:
    """All of ResNet-50 trained with the head on top, crops and mirrors as ImageNet's; the rate by held-out rows."""
    s = cell.settings
    dataset = data.load(s["set"], rows=None if s["rows"] is None else (s["rows"], s["test_rows"]))
    x, y = normalised(dataset.x_train).to(cell.device), dataset.y_train.to(cell.device)
    classes = len(dataset.classes)

    def train(rows: Tensor, rate: float) -> nn.Module:
        torch.manual_seed(cell.seed)
        # the ReLU off the embedding, as for every network of the paper (Appendix A)
        model = kernelize(imagenet_resnet50(classes), head=partial(make_head, s["head"]), rectify="off")
        if s["head"] == "SOP":
            model.pool = nn.Identity()
        generator = torch.Generator().manual_seed(cell.seed)
        fit(
            model, x[rows], y[rows], epochs=s["epochs"], batch=min(s["batch"], len(rows)), lr=rate,
            generator=generator, augment=crop_and_resize,
        )  # fmt: skip
        return model

    rate = s["rates"][0]
    if len(s["rates"]) > 1:
        # the rate that a tenth of the rows likes best, then all rows
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(cell.seed))
        judging, training = order[: len(x) // 10], order[len(x) // 10 :]
        rate = choose_best(s["rates"], lambda tried: accuracy(train(training, tried), x[judging], y[judging]))
    model = train(torch.arange(len(x)), rate)
    value = accuracy(model, normalised(dataset.x_test).to(cell.device), dataset.y_test.to(cell.device))
    return Outcome(value=value, note=f"ResNet-50 of ImageNet, {len(x)} pictures, {s['epochs']} epochs, rate {rate:g}.")


def crop_and_resize(x: Tensor, generator: torch.Generator) -> Tensor:  # (n, 3, h, w) -> the same
    """A part of 8 to 100 % of each picture's area, 3:4 to 4:3, at full size, mirrored by chance (He et al., 2016)."""
    size = x.shape[-1]
    crops = []
    for picture in x:
        area, ratio, across, down, coin = torch.rand(5, generator=generator).tolist()
        share = 0.08 + 0.92 * area
        stretch = (4 / 3) ** (2 * ratio - 1)  # even in its logarithm
        w, h = (max(1, min(size, round(size * (share * r) ** 0.5))) for r in (stretch, 1 / stretch))
        left, top = int(across * (size - w + 1)), int(down * (size - h + 1))
        crop = picture[None, :, top : top + h, left : left + w]
        crop = F.interpolate(crop, size=(size, size), mode="bilinear", align_corners=False)[0]
        crops.append(crop.flip(2) if coin < 0.5 else crop)
    return torch.stack(crops)


@lru_cache(maxsize=64)
def _rate(head: str, labels: str, rows: int, epochs: int, batch: int, device: str) -> float:
    """The rate of most accuracy on a fifth of the training rows that the others predict."""
    z, y, _, _ = _compute_embeddings(labels, rows)
    classes = int(y.max()) + 1
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(99))
    judging, training = order[: len(z) // 5], order[len(z) // 5 :]

    def judge(lr: float) -> float:
        x_fit, y_fit = z[training], y[training]
        logits = fit_head(head, x_fit, y_fit, classes, epochs=epochs, seed=99, lr=lr, batch=batch, device=device)
        return _accuracy(logits, z[judging], y[judging])

    return choose_best(_RATES, judge)


def _accuracy(logits: Callable[[Tensor], Tensor], z: Tensor, y: Tensor) -> float:
    return float((logits(z).argmax(1) == y).double().mean())


def fit_head(
    name: str,
    z: Tensor,
    y: Tensor,
    classes: int,
    *,
    epochs: int,
    seed: int,
    lr: float = 0.02,
    batch: int = 64,
    device: str = "cpu",
) -> Callable[[Tensor], Tensor]:
    """Train a head on standardized embeddings by Adam with a one-cycle rate; returns embeddings -> logits.

    Mercer's head has as many prototypes as the rows of a class can carry, started by k-means, and a bias; the default
    head is ``KernelClassifier(d, c)`` as it comes.
    """
    # the head, on standardized embeddings; ours starts from k-means
    mean, deviation = z.mean(0), z.std(0).clamp(min=1e-6)
    scaled = (z - mean) / deviation
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    width = z.shape[1]
    if name == "MLP 256":
        head: nn.Module = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, classes))
    elif name == _DEFAULT:
        head = KernelClassifier(width, classes)
    elif name == _AUTO:
        head = KernelClassifier(width, classes, prototypes="auto")
    elif name == _MERCER:
        count = max(1, min(5, len(z) // (classes * _ROWS_OF_A_PROTOTYPE)))
        head = KernelClassifier(width, classes, RadialSeries(), prototypes=count, bias=True, temperature=0.25)
    else:
        head = make_head(name, width, classes)
    if isinstance(head, KernelClassifier) and name in (_MERCER, _AUTO):
        head.init_from(scaled, y, generator=generator)
    # the training
    head.to(device)
    scaled, y = scaled.to(device), y.to(device)
    optimizer = torch.optim.AdamW(head.parameters(), lr, weight_decay=_DECAY)
    train_head(head, optimizer, scaled, y, lr=lr, epochs=epochs, batch=batch, generator=generator)
    head.cpu()

    @torch.no_grad()
    def logits(new: Tensor) -> Tensor:
        result: Tensor = head((new - mean) / deviation)
        return result

    return logits


@lru_cache(maxsize=3)
def _compute_embeddings(labels: str, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if labels == "synthetic":
        generator = torch.Generator().manual_seed(0)
        z, y = torch.randn(80, 8, generator=generator), torch.arange(80) % 4
        return z[:40], y[:40], z[40:], y[40:]
    if rows > _PICTURES:
        return _read_embeddings(labels, rows)
    x, y, x_test, y_test = cifar("cifar100_subset", None, None)
    x, y = x[:rows], y[:rows]
    model = published_resnet20()
    z, z_test = (embeddings(model, list(part.split(250)), layer="pool") for part in (x, x_test))
    if labels == "coarse":
        coarse = _coarse_of_fine()
        y, y_test = coarse[y], coarse[y_test]
    return z, y, z_test, y_test


def _read_embeddings(labels: str, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    path = Path(data_folder(None) or "") / _EMBEDDINGS
    if not path.is_file():
        raise data.MissingData(f"Put {_EMBEDDINGS} into the folder MERCER_DATA names.")
    arrays = read_npz(path, ["embeddings", labels])
    z, y = torch.tensor(arrays["embeddings"]).float(), torch.tensor(arrays[labels]).long()
    train = slice(0, min(rows, len(z) - _SCORED))
    return z[train], y[train], z[-_SCORED:], y[-_SCORED:]


def _coarse_of_fine() -> Tensor:
    files = locate(SOURCES["cifar100_subset"], data_folder(None))
    if files is None:
        raise data.MissingData(data.how_to_get("cifar100_subset"))
    return torch.from_numpy(read_npz(files[0][0], ["coarse_of_fine"])["coarse_of_fine"].astype("int64"))
