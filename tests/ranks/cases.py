"""What is computed by one process on all rows and by two ranks on their own: one list, run by ``test_ranks_methods``.

``python -m tests.ranks.cases FOLDER RANK RANKS`` runs every case as one of the ranks, which meet by a file, and writes
what each gave. A case takes the rows that are its process's and returns numbers that must be the same everywhere.
"""

import datetime
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from mercer import bayes, layerwise, spectral
from mercer.distributed import gather_rows
from mercer.features import NeuralEigenfunctions, Nystrom
from mercer.kernels import RBF, EmpiricalNTK, Kernel, Matern, ReLUGram, infinite_width
from mercer.machines import KernelRidge
from mercer.nn import CosineClassifier, KernelClassifier, Kervolution2d, SecondOrderPooling, kernelize
from mercer.optim import FunctionSpaceSGD
from mercer.rows.stored import open_rows
from mercer.spectral.comparison import spectra
from mercer.tabular import TabularModel
from mercer.tabular.streaming import fit_file
from mercer.tabular.training import Sizes
from mercer_papers import rivals
from tests.features.cases import CASES as MAPS
from tests.optim.cases import CASES as OPTIMIZERS
from tests.optim.cases import advance

STEPS = 20
N, C = 60, 3
SPLITS = {"uneven": [0, 37, 60], "one_has_none": [0, 60, 60]}  # where each rank's rows begin

Case = Callable[[slice], dict[str, Tensor]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


X = torch.randn(N, 3, generator=seeded(), dtype=torch.float64) * 0.7
LABELS = torch.arange(N) * C // N  # sorted: the ranks' rows lack classes
Y = (X[:, 0] * 2 - X[:, 1] ** 2 + 0.1 * LABELS).contiguous()
ROWS = X + LABELS[:, None] * torch.tensor([1.0, -0.5, 0.2])
NAMES = np.array(["early", "late", "middle"])[LABELS.numpy()]


# --- sums over row shards ---------------------------------------------------------------------------------------------


def mapped(make: Callable[[], nn.Module]) -> Case:
    def case(own: slice) -> dict[str, Tensor]:
        fitted = make().fit(X[own])
        found = {"kernel": fitted.kernel(X)}
        return found | ({"eigenvalues": fitted.eigenvalues} if hasattr(fitted, "eigenvalues") else {})

    return case


def wide_network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def classified(own: slice, labels: object = LABELS, **options: object) -> dict[str, Tensor]:
    model = layerwise.KernelNetworkClassifier(random_state=0, **options).fit(ROWS[own].numpy(), labels[own])
    assert len(model.classes_) == C and set(model.classes_) == set(np.asarray(labels))
    records = torch.tensor([[row["hsic"], row["mse"], row["ce"]] for row in model.history_])
    return {"proba": torch.from_numpy(model.predict_proba(ROWS.numpy())), "records": records.double()}


def classified_by_landmarks(own: slice) -> dict[str, Tensor]:
    return classified(own, landmarks=25)


def grown(own: slice) -> dict[str, Tensor]:
    model = layerwise.KernelNetworkClassifier(random_state=0, landmarks=12)
    more = ROWS + 0.1
    model.fit(ROWS[own].numpy(), LABELS[own].numpy())
    model.partial_fit(more[own].numpy(), LABELS[own].numpy())
    return {"proba": torch.from_numpy(model.predict_proba(ROWS.numpy()))}


def regressed(own: slice, landmarks: int | None = None) -> dict[str, Tensor]:
    model = layerwise.KernelNetworkRegressor(random_state=0, landmarks=landmarks)
    model.fit(ROWS[own].numpy(), Y[own].numpy()).partial_fit(ROWS[own].numpy(), Y[own].numpy() + 0.1)
    return {"predicted": torch.from_numpy(model.predict(ROWS.numpy()))}


def ridged(own: slice, kernel: Kernel | None = None, **options: object) -> dict[str, Tensor]:
    machine = KernelRidge(kernel, random_state=0, **options).fit(ROWS[own], Y[own])
    numbers = torch.tensor([machine.penalty_, len(machine.anchors_)], dtype=torch.float64)
    found = {"predicted": machine.predict(ROWS), "variance": machine.variance(ROWS), "numbers": numbers}
    return found if machine.loo_ is None else {**found, "loo": machine.loo_}


def ridged_in_parts(own: slice) -> dict[str, Tensor]:
    machine = KernelRidge(RBF(0.5), landmarks=12, random_state=0).fit(ROWS[own], Y[own])
    return {"predicted": machine.partial_fit(X[own], Y[own]).predict(ROWS)}


def streamed(own: slice) -> dict[str, Tensor]:
    """Blocks of a file, more of them on one rank than on the other."""
    source = open_rows(torch.cat((ROWS, Y[:, None]), 1).numpy()).part(own)
    model = layerwise.KernelNetworkRegressor(random_state=0, landmarks=12).fit(X[own].numpy(), Y[own].numpy())
    for block in source.blocks(16):
        model.partial_fit(block[:, :3], block[:, 3])
    fitted = Nystrom(RBF(0.5), 8, selection=X[:8]).fit(source.then(lambda block: block[:, :3]))
    return {"predicted": torch.from_numpy(model.predict(ROWS.numpy())), "eigenvalues": fitted.eigenvalues}


def small_tiles() -> Any:
    return mock.patch("mercer.kernels.tiled_gram._SIDE", 16)


def read(spectrum: spectral.Spectrum) -> dict[str, Tensor]:
    numbers = [spectrum.complexity, *spectrum.bracket, spectrum.effective_dimension, spectrum.alignment]
    curve = spectrum.convergence(0.01, STEPS)
    return {"values": spectrum.eigenvalues, "numbers": torch.tensor(numbers).double(), "curve": curve}


def analyzed(own: slice) -> dict[str, Tensor]:
    with small_tiles():
        named = spectral.analyze(ReLUGram(), X[own], NAMES[own], k=5)
        numbers = spectral.analyze(Matern(1.5), X[own], Y[own], k=5, storage="float32")
        by_map = spectral.analyze(Nystrom(RBF(0.5), 8, generator=seeded()).fit(X[own]), X[own], LABELS[own], k=5)
        found = {"named": read(named), "numbers": {"values": numbers.eigenvalues}, "map": read(by_map)}
    return {f"{name}.{key}": value for name, part in found.items() for key, value in part.items()}


def compared(own: slice) -> dict[str, Tensor]:
    candidates = {"relu": ReLUGram(), "rbf": RBF(0.5), "shown": (X[own] ** 2).numpy()}
    with small_tiles():
        table = spectral.compare(candidates, X[own], LABELS[own])
        layers = spectral.layers(wide_network(), [(X[own], LABELS[own])], ["0", "1"])
        values = spectra(candidates, X[own], LABELS[own], k=4)["rbf"].eigenvalues
    read_off = [torch.from_numpy(t.sort_index().to_numpy(dtype=np.float64)) for t in (table, layers)]
    return {"table": read_off[0], "layers": read_off[1], "rbf": values}


def descended(own: slice) -> dict[str, Tensor]:
    rows = F.normalize(X)
    network = rivals.TwoLayerNet(3, 20, generator=seeded(), dtype=torch.float64)
    path = rivals.train_two_layer(network, rows[own], Y[own], lr=0.01, steps=STEPS)
    map_ = rivals.neural_embedding(rows[own], Y[own], width=8, hidden=4, epochs=5, batch=16, generator=seeded())
    return {"residual": path.residual, "weight": network.weight.detach(), "embedding": map_(rows)}


def multiplied(own: slice) -> dict[str, Tensor]:
    kernel, v = RBF.from_data(X[own]), torch.stack((Y, Y**2), 1)
    whole = kernel.matmul(X, X[own], v[own], over_ranks=True)
    mine = kernel.matmul(X[own], None, v[own], over_ranks=True)
    return {
        "whole": whole,
        "in_shares": gather_rows(mine),
        "columns": kernel.matmul(X, X[own], Y[own], over_ranks=True),
    }


def multiplied_wide(own: slice) -> dict[str, Tensor]:
    """The infinitely wide limits of a network of vectors and of one that pools sequences: products and shared tiles."""
    torch.manual_seed(3)
    layers = [nn.Conv1d(1, 8, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 1)]
    found = {}
    for name, network, rows in (
        ("vectors", wide_network(), X),
        ("sequences", nn.Sequential(*layers).double(), X[:, None]),
    ):
        kernel = infinite_width(network, example=rows[:1])
        found[name] = kernel.matmul(rows, rows[own], Y[own], over_ranks=True)
        found[f"{name}.in_shares"] = gather_rows(kernel.matmul(rows[own], None, Y[own], over_ranks=True))
        with small_tiles():
            found[f"{name}.values"] = spectral.analyze(kernel, rows[own], LABELS[own], k=5).eigenvalues
    return found


def posterior(own: slice, *, val: bool = True, **options: object) -> dict[str, Tensor]:
    regression = options.get("likelihood") == "regression"
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1 if regression else C)).double()
    targets = Y[:, None] if regression else LABELS
    options = {"parameters": "all", "k": 6, "batch_size": 16, "network_steps": STEPS, **options}
    model = bayes.LinearizedLaplace(network, generator=seeded(), **options)
    model.fit((X[own], targets[own]), (ROWS[own], targets[own]) if val else None)
    mean, covariance = model.logits(X)
    numbers = torch.tensor([model.prior_precision_, model.noise_], dtype=torch.float64)
    rest = {} if regression else {"proba": model.predict_proba(X)}
    return {"mean": mean, "covariance": covariance, "numbers": numbers, **rest}


def run_of_networks() -> list[nn.Module]:
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        found.append(nn.Linear(3, C).double())
    return found


def trajectory(own: slice) -> dict[str, Tensor]:
    model = bayes.TrajectoryGP(run_of_networks()).fit(None, (ROWS[own], LABELS[own]))
    noisy = bayes.TrajectoryGP(run_of_networks(), likelihood="regression", network_steps=STEPS, generator=seeded())
    noisy.fit((X[own], ROWS[own]), (X[own], ROWS[own]))
    numbers = torch.tensor([model.precision_, noisy.precision_, noisy.noise_], dtype=torch.float64)
    return {"numbers": numbers, "proba": model.predict_proba(X)}


def calibrated(own: slice) -> dict[str, Tensor]:
    networks = run_of_networks()
    several = bayes.DeepEnsemble(networks).fit((X[own], LABELS[own]), (X[own], LABELS[own]))
    one = bayes.TemperatureScaling(networks[0]).fit((X[own], LABELS[own]))
    return {"several": several.predict_proba(X), "one": one.predict_proba(X)}


def kronecker(own: slice) -> dict[str, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, C)).double()
    return {"covariance": bayes.KroneckerLaplace(network).fit((X[own], LABELS[own])).logits(X)[1]}


def directions(own: slice) -> dict[str, Tensor]:
    one, several = KernelClassifier(3, C).double(), KernelClassifier(3, C, prototypes=2).double()
    one.init_from(ROWS[own], LABELS[own])
    several.init_from(ROWS[own], LABELS[own], generator=seeded())
    return {"one": one.weight.detach(), "several": several.weight.detach()}


SHARDS: dict[str, Case] = {
    **{f"map-{name}": mapped(make) for name, make in MAPS.items()},
    "map-own_network": mapped(
        lambda: NeuralEigenfunctions(
            RBF(0.5), 4, network=wide_network(), method="neuralef", steps=STEPS, batch_size=32, generator=seeded()
        )
    ),
    "map-moved_landmarks": mapped(
        lambda: NeuralEigenfunctions(RBF(0.5), 4, landmarks=8, steps=STEPS, batch_size=32, generator=seeded())
    ),
    "map-tangent_kernel": mapped(
        lambda: NeuralEigenfunctions(
            EmpiricalNTK(wide_network(), method="jvp", samples=16, generator=seeded()),
            4,
            steps=STEPS,
            generator=seeded(),
        )
    ),
    "classifier-auto": classified,
    "classifier-names": lambda own: classified(own, NAMES),
    "classifier-landmarks": classified_by_landmarks,
    "classifier-partial_fit": grown,
    "classifier-spectral": lambda own: classified(own, solver="spectral", features=20),
    "classifier-closed_form": lambda own: classified(own, solver="closed_form"),
    "regressor": regressed,
    "regressor-landmarks": lambda own: regressed(own, 12),
    "ridge-exact": lambda own: ridged(own, Matern(1.5), solver="exact"),
    "ridge-chosen": ridged,
    "ridge-landmarks": lambda own: ridged(own, RBF(0.5), solver="landmarks", landmarks=12),
    "ridge-eigenpro": lambda own: ridged(own, Matern(0.5), solver="eigenpro"),
    "ridge-partial_fit": ridged_in_parts,
    "stored_rows": streamed,
    "analyze": analyzed,
    "compare": compared,
    "two_layer": descended,
    "matmul": multiplied,
    "matmul-infinite_width": multiplied_wide,
    "laplace-validation": posterior,
    "laplace-evidence": lambda own: posterior(own, val=False, prior_precision="evidence", complement=False),
    "laplace-regression": lambda own: posterior(own, likelihood="regression"),
    "laplace-network": lambda own: posterior(own, prior_precision=1.0, eigenfunctions="network"),
    "calibrated": calibrated,
    "kronecker": kronecker,
    "trajectory_gp": trajectory,
    "init_from": directions,
}


# --- DDP: every rank has as many rows ---------------------------------------------------------------------------------


def wrapped(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {"weights": torch.cat([p.detach().flatten() for p in model.parameters()])}


def batches(shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    draw = seeded(1)
    return [
        (torch.randn(12, *shape, generator=draw, dtype=torch.float64), torch.randint(C, (12,), generator=draw))
        for _ in range(STEPS)
    ]


def own_rows(own: slice) -> slice:
    """The rank's half of a batch of 12."""
    return slice(own.start * 12 // N, own.stop * 12 // N)


def optimized(name: str) -> Case:
    def case(own: slice) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = wrapped(nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, C)).double())
        optimizer = OPTIMIZERS[name].make(model.parameters(), model)
        for x, y in batches((6,)):
            advance(OPTIMIZERS[name], model, optimizer, x[own_rows(own)], y[own_rows(own)])
        return weights(model)

    return case


def trained(make: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: Callable | None = None) -> Case:
    def case(own: slice) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = wrapped(make().double())
        steps = torch.optim.SGD(model.parameters(), 0.1) if optimizer is None else optimizer(model)
        for x, y in batches(shape):
            steps.zero_grad()
            F.cross_entropy(model(x[own_rows(own)]), y[own_rows(own)]).backward()
            steps.step()
        return weights(model)

    return case


def with_head(head: Callable[[int, int], nn.Module] | None = None) -> Callable[[], nn.Module]:
    return lambda: kernelize(nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, C)), head=head)


def picture_network() -> nn.Module:
    return nn.Sequential(Kervolution2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, C))


def convolutional_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, C))


def convolutional(model: nn.Module) -> torch.optim.Optimizer:
    return FunctionSpaceSGD(model.parameters(), 0.1, model=model, update_every=1)


UNDER_DDP: dict[str, Case] = {
    **{f"optimizer-{name}": optimized(name) for name in OPTIMIZERS},
    "optimizer-convolution": trained(convolutional_network, (1, 5, 5), convolutional),
    "head-kernelized": trained(with_head(), (6,)),
    "head-prototypes": trained(with_head(lambda d, c: KernelClassifier(d, c, prototypes=2, bias=True)), (6,)),
    "head-cosine": trained(with_head(CosineClassifier), (6,)),
    "head-second_order": trained(with_head(SecondOrderPooling), (6,)),
    "layer-kervolution": trained(picture_network, (1, 5, 5)),
}


# --- a file that every rank reads, and learns its share of ------------------------------------------------------------


def tabled(target: str, **limits: Any) -> Case:
    def case(own: slice) -> dict[str, Tensor]:
        table = pd.DataFrame(ROWS.numpy(), columns=list("abc")).assign(sort=NAMES, number=Y.numpy())
        table = pd.concat((table, table[::-1]))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            table.to_csv(path, index=False)
            model = fit_file(TabularModel(), path, target, progress=lambda text: None, **limits)
        answer = model.predict(table)
        columns = [name for name in answer.columns if name != "prediction" or target == "number"]
        return {"answers": torch.from_numpy(answer[columns].to_numpy(dtype=np.float64))}

    return case


TABLES: dict[str, Case] = {
    "table-classes": tabled("sort"),
    "table-classes_in_parts": tabled("sort", rows=25, sample=50, sizes=Sizes(exact=40, leaf=20, left_out=10)),
    "table-numbers_in_parts": tabled("number", rows=25, sample=50, sizes=Sizes(exact=40, leaf=20, left_out=10)),
}


def run_as(folder: Path, rank: int, ranks: int) -> None:
    """Every case as one of the ranks; what it gave in ``<case>.<split>.<rank>.safetensors``."""
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    runs = [(name, split, case, SPLITS[split]) for split in SPLITS for name, case in SHARDS.items()]
    runs += [(name, "even", case, [0, N // 2, N]) for name, case in UNDER_DDP.items()]
    runs += [(name, "even", case, [0, N // 2, N]) for name, case in TABLES.items()]
    for name, split, case, starts in runs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = case(slice(starts[rank], starts[rank + 1]))
        plain = {key: value.detach().contiguous() for key, value in found.items()}
        save_file(plain, folder / f"{name}.{split}.{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    run_as(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
