"""End-to-end fits: a function a case, by public names only, that returns some numbers under the name of each output.

Data ship with scikit-learn or come from fixed seeds of numpy. Weights of networks depend on their shapes alone, neither
on torch's own starts nor on the order of the parameters. Values are float64 wherever the library allows it.
"""

import copy
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from mercer import bayes, kernels, metrics, spectral
from mercer.features import NeuralEigenfunctions, Nystrom, PositiveRandomFeatures, RandomFourier
from mercer.kernels import functionals
from mercer.layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from mercer.machines import KernelRidge, StackedRidge
from mercer.nn import (
    CosineClassifier,
    KernelClassifier,
    Kervolution2d,
    SecondOrderPooling,
    distillation_loss,
    kernelize,
    sampled_cross_entropy,
)
from mercer.optim import ESGD, EigenProSGD, FunctionSpaceSGD, KernelSGD, MultiBatchLBFGS
from mercer.tabular import TabularClassifier, TabularModel, TabularRegressor

Values = dict[str, list[float]]
CASES: dict[str, Callable[[], Values]] = {}
MOST = 12  # numbers an output


def case(function: Callable[[], Values]) -> Callable[[], Values]:
    CASES[function.__name__] = function
    return function


def numbers(output: Tensor | np.ndarray | pd.Series | Iterable[float] | float) -> list[float]:
    """An output as a list: all of it, or twelve numbers evenly spaced over it."""
    array = output.detach().numpy() if isinstance(output, Tensor) else np.asarray(output)
    flat = array.astype(np.float64).reshape(-1)
    if len(flat) > MOST:
        flat = flat[np.linspace(0, len(flat) - 1, MOST).round().astype(int)]
    return [float(value) for value in flat]


# ----------------------------------------------------------------------------------------------------------- data


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bundled(name: str, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """A set of scikit-learn, columns standardised, rows in a fixed random order."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).random(len(x)).argsort()[:rows]
    x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    return torch.from_numpy(x[order]), torch.from_numpy(y[order])


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Uniform rows, each column with a spread of its own so that no two eigenvalues are equal."""
    return torch.from_numpy(np.random.default_rng(seed).random((n, d)) * np.linspace(2, 1, d) - 0.5)


def customers(rows: int) -> pd.DataFrame:
    """Words, dates, yes and no, numbers with holes, a constant and an identifier; the bill depends on most of them."""
    rng = np.random.default_rng(7)
    plan = np.array(["basic", "plus", "family", "business"])[(rng.random(rows) * 4).astype(int)]
    city = np.array([f"city {i}" for i in range(12)])[(rng.random(rows) * 12).astype(int)]
    joined = pd.Timestamp("2021-01-01") + pd.to_timedelta((rng.random(rows) * 900).astype(int), unit="D")
    calls, minutes = (rng.random(rows) * 20).round(), (rng.random(rows) * 300).round(1)
    complained = rng.random(rows) < 0.3
    bill = 20 + 0.2 * minutes + 1.5 * calls + 6 * np.cos(2 * np.pi * joined.day_of_year.to_numpy() / 365.25)
    bill += pd.Series(plan).map({"basic": 0.0, "plus": 12.0, "family": 25.0, "business": 55.0}).to_numpy()
    bill += 4 * (rng.random(rows) - 0.5)
    doubt = 0.05 * bill - 0.3 * calls + 2.5 * complained + 2 * (rng.random(rows) - 0.5)
    frame = pd.DataFrame(
        {
            "customer": [f"C{i:05}" for i in range(rows)],
            "plan": plan,
            "city": city,
            "joined": joined.strftime("%d.%m.%Y"),
            "calls": calls,
            "minutes": minutes,
            "complained": np.where(complained, "yes", "no"),
            "country": "CH",
            "bill": bill.round(2),
            "state": np.array(["stays", "wavers", "leaves"])[np.digitize(doubt, [1.0, 3.0])],
        }
    ).astype({"calls": object, "minutes": object, "plan": object, "joined": object})
    for column, share, mark in (("calls", 0.08, "?"), ("minutes", 0.1, ""), ("plan", 0.05, "NA"), ("joined", 0.03, "")):
        frame.loc[rng.random(rows) < share, column] = mark
    return frame


# ------------------------------------------------------------------------------------------------------- networks


@torch.no_grad()
def fill(module: nn.Module) -> nn.Module:
    """Float64; weights of two and more dimensions uniform by a seed that their shape gives; biases 0."""
    module = module.double()
    for name, parameter in module.named_parameters():
        if parameter.ndim == 1 and name.endswith("bias"):
            parameter.zero_()
        if parameter.ndim > 1:
            values = np.random.default_rng([1, *parameter.shape]).random(tuple(parameter.shape))
            fan_in = parameter[0].numel()
            parameter.copy_(torch.from_numpy((2 * values - 1) * (2 / fan_in) ** 0.5))
    return module


def mlp(d: int = 13, width: int = 12, c: int = 3) -> nn.Module:
    return fill(nn.Sequential(nn.Linear(d, width), nn.Tanh(), nn.Linear(width, c)))


def cnn(c: int = 10) -> nn.Module:
    layers = [nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU()]
    return fill(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, c)))


class Transformer(nn.Module):
    """One encoder layer with one head over the eight lines of a digit, their mean, a linear read-out."""

    def __init__(self, c: int = 10) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.norm_after = nn.LayerNorm(8), nn.LayerNorm(8)
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 8)
        self.classifier = nn.Linear(8, c)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        attention = (self.query(z) @ self.key(z).mT / 8**0.5).softmax(-1)
        x = x + self.out(attention @ self.value(z))
        x = x + self.outer(F.gelu(self.inner(self.norm_after(x))))
        return self.classifier(x.mean(1))


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """Full batches by Adam; cross-entropy of classes, squared error of numbers."""
    loss = mean_squared if y.is_floating_point() else F.cross_entropy
    optimizer = torch.optim.Adam(model.parameters(), 0.02, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def mean_squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().mean()


def steps_of(optimizer: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor, *, closure: bool) -> Values:
    """The losses of five steps on five batches, then those of all rows, and some logits."""
    losses = []
    for xs, ys in zip(x.chunk(5), y.chunk(5), strict=True):

        def evaluate(xs: Tensor = xs, ys: Tensor = ys) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(xs), ys)
            loss.backward()
            return loss

        if closure:
            losses.append(float(torch.as_tensor(optimizer.step(evaluate)).detach()))
        else:
            losses.append(float(evaluate().detach()))
            optimizer.step()
    logits = model.eval()(x)
    return {"losses": losses, "after": numbers(F.cross_entropy(logits, y)), "logits": numbers(logits[:4])}


# --------------------------------------------------------------------------------------------------------- tables


def table_values(target: str, dropped: str, scores: list[str], columns: list[str]) -> Values:
    frame = customers(320).drop(columns=dropped)
    strange = frame.tail(2).assign(minutes=5000.0, plan="satellite")
    new = pd.concat([frame.tail(8), strange])
    model = TabularModel(random_state=0).fit(frame.head(300), target)
    answers = model.predict(new.drop(columns=target))
    importance = model.explain()
    values = {column: numbers(answers[column]) for column in columns}
    values["scores"] = numbers([model.scores[name] for name in scores])
    values["explained"] = numbers([list(frame.columns).index(name) for name in importance.index])  # the order
    values["importance"] = numbers(importance["weight"])
    return values


@case
def table_of_classes() -> Values:
    return table_values(
        "state",
        "bill",
        ["accuracy", "balanced_accuracy", "log_loss"],
        ["p_leaves", "p_stays", "p_wavers", "unfamiliar"],
    )


@case
def table_of_numbers() -> Values:
    return table_values("bill", "state", ["r2", "rmse"], ["prediction", "low", "high", "unfamiliar"])


@case
def tabular_classifier_wine() -> Values:
    x, y = bundled("wine")
    model = TabularClassifier(random_state=0).fit(x[:120].numpy(), y[:120].numpy())
    probabilities = torch.tensor(model.predict_proba(x[120:].numpy()))
    return {
        "proba": numbers(probabilities[:4]),
        "log_loss": numbers(metrics.nll(probabilities, y[120:])),
        "accuracy": numbers(metrics.accuracy(probabilities, y[120:])),
    }


@case
def tabular_classifier_breast_cancer() -> Values:
    x, y = bundled("breast_cancer", 300)
    names = np.array(["malignant", "benign"])
    model = TabularClassifier(random_state=0).fit(x[:200].numpy(), names[y[:200].numpy()])
    return {
        "proba": numbers(model.predict_proba(x[200:].numpy())[:12, 0]),
        "accuracy": numbers((model.predict(x[200:].numpy()) == names[y[200:].numpy()]).mean()),
    }


@case
def tabular_regressor_diabetes() -> Values:
    x, y = bundled("diabetes")
    model = TabularRegressor(random_state=0).fit(x[:300].numpy(), y[:300].numpy())
    low, high = np.asarray(model.predict_interval(x[300:304].numpy())).reshape(4, 2).T
    prediction = model.predict(x[300:].numpy())
    return {
        "prediction": numbers(prediction[:8]),
        "low": numbers(low),
        "high": numbers(high),
        "rmse": numbers(np.sqrt(np.mean((prediction - y[300:].numpy()) ** 2))),
    }


# ------------------------------------------------------------------------------------------------------- machines


def ridge_values(machine: KernelRidge) -> Values:
    x, y = bundled("diabetes")
    machine.fit(x[:340], y[:340])
    values = {
        "prediction": numbers(machine.predict(x[340:348])),
        "variance": numbers(machine.variance(x[340:348])),
        "rmse": numbers((machine.predict(x[340:]) - y[340:]).square().mean().sqrt()),
        "penalty": numbers(machine.penalty_),
    }
    if machine.loo_ is not None:
        values["left_out"] = numbers(machine.loo_)
    return values


@case
def ridge_exact() -> Values:
    return ridge_values(KernelRidge(kernels.RBF(0.02), solver="exact"))


@case
def ridge_exact_at_a_penalty() -> Values:
    return ridge_values(KernelRidge(kernels.Matern(1.5, 4.0), penalty=0.3, solver="exact"))


@case
def ridge_landmarks() -> Values:
    return ridge_values(KernelRidge(kernels.RBF(0.02), solver="landmarks", landmarks=60, random_state=0))


@case
def ridge_in_parts() -> Values:
    x, y = bundled("diabetes")
    machine = KernelRidge(kernels.RBF(0.02), penalty=0.5, solver="landmarks", landmarks=60, random_state=0)
    for part in (slice(0, 150), slice(150, 200), slice(200, 340)):
        machine.partial_fit(x[part], y[part])
    return {"prediction": numbers(machine.predict(x[340:350])), "variance": numbers(machine.variance(x[340:350]))}


@case
def ridge_eigenpro() -> Values:
    return ridge_values(KernelRidge(kernels.Laplacian(0.05), solver="eigenpro", random_state=0))


@case
def ridge_of_several_columns() -> Values:
    x, y = bundled("digits", 600)
    machine = KernelRidge(kernels.RBF(0.01), random_state=0).fit(x[:400], F.one_hot(y[:400], 10).double())
    scores = machine.predict(x[400:])
    return {
        "prediction": numbers(scores[:6]),
        "left_out": numbers(machine.loo_),
        "accuracy": numbers((scores.argmax(1) == y[400:]).double().mean()),
    }


@case
def ridge_that_chooses_its_kernel() -> Values:
    return ridge_values(KernelRidge(random_state=0))


@case
def stacked_ridge() -> Values:
    x, y = bundled("diabetes")
    machine = StackedRidge(random_state=0).fit(x[:300], y[:300, None])
    prediction = machine.predict(x[300:])
    return {
        "prediction": numbers(prediction[:10]),
        "left_out": numbers(machine.loo_),
        "rmse": numbers((prediction[:, 0] - y[300:]).square().mean().sqrt()),
    }


@case
def stacked_ridge_of_classes() -> Values:
    x, y = bundled("wine")
    machine = StackedRidge(random_state=0).fit(x[:120], F.one_hot(y[:120], 3).double())
    return {"prediction": numbers(machine.predict(x[120:124])), "left_out": numbers(machine.loo_)}


# ------------------------------------------------------------------------------------------------------ layerwise


def layerwise_values(solver: str) -> Values:
    x, y = bundled("wine")
    x = x[:, 1:5]  # classes overlap: probabilities are not all at their floor
    model = KernelNetworkClassifier(solver=solver, random_state=0).fit(x[:100].numpy(), y[:100].numpy())
    probabilities = torch.from_numpy(model.predict_proba(x[100:].numpy()))
    values = {name: numbers([layer[name] for layer in model.history_]) for name in ("bandwidth", "hsic", "mse")}
    return values | {
        "layers": numbers(model.n_layers_),
        "proba": numbers(probabilities[:4]),
        "log_loss": numbers(metrics.nll(probabilities, y[100:])),
    }


@case
def kernel_network_auto() -> Values:
    return layerwise_values("auto")


@case
def kernel_network_spectral() -> Values:
    return layerwise_values("spectral")


@case
def kernel_network_closed_form() -> Values:
    return layerwise_values("closed_form")


@case
def kernel_network_regressor() -> Values:
    x, y = bundled("diabetes")
    model = KernelNetworkRegressor(random_state=0).fit(x[:200].numpy(), y[:200].numpy())
    prediction = model.predict(x[200:].numpy())
    return {
        "prediction": numbers(prediction[:8]),
        "rmse": numbers(np.sqrt(np.mean((prediction - y[200:].numpy()) ** 2))),
        "layers": numbers(model.n_layers_),
    }


# ------------------------------------------------------------------------------------------------------- features


def eigenfunction_values(features: NeuralEigenfunctions) -> Values:
    """Functions are known up to their sign: absolute values, and the Gram matrix, where signs cancel."""
    x = points(200, 2)
    features.fit(x)
    new = points(6, 2, seed=1)
    return {
        "eigenvalues": numbers(features.eigenvalues),
        "functions": numbers(features.eigenfunctions(new).abs()),
        "gram": numbers(features.kernel(new)),
    }


@case
def eigenfunctions_auto() -> Values:
    return eigenfunction_values(NeuralEigenfunctions(kernels.RBF(1.0), 4, generator=seeded()))


@case
def eigenfunctions_landmarks() -> Values:
    made = NeuralEigenfunctions(kernels.RBF(1.0), 4, method="landmarks", landmarks=20, generator=seeded())
    return eigenfunction_values(made)


@case
def eigenfunctions_neuralef() -> Values:
    made = NeuralEigenfunctions(kernels.RBF(1.0), 3, method="neuralef", steps=30, generator=seeded())
    return eigenfunction_values(made)


@case
def eigenfunctions_neuralef_without_ritz() -> Values:
    made = NeuralEigenfunctions(kernels.RBF(1.0), 3, method="neuralef", ritz=False, steps=30, generator=seeded())
    return eigenfunction_values(made)


@case
def eigenfunctions_distill() -> Values:
    made = NeuralEigenfunctions(kernels.RBF(1.0), 3, method="distill", steps=60, generator=seeded())
    return eigenfunction_values(made)


@case
def eigenfunctions_distill_without_ritz() -> Values:
    made = NeuralEigenfunctions(kernels.RBF(1.0), 3, method="distill", ritz=False, steps=60, generator=seeded())
    return eigenfunction_values(made)


@case
def feature_maps() -> Values:
    x, new = points(60, 3), points(4, 3, seed=1)
    maps = {
        "fourier": RandomFourier(kernels.RBF(1.0), 40, generator=seeded()),
        "fourier_orthogonal": RandomFourier(kernels.Matern(1.5), 40, orthogonal=True, generator=seeded()),
        "nystrom": Nystrom(kernels.RBF(1.0), 12, generator=seeded()),
        "nystrom_kmeans": Nystrom(kernels.RBF(1.0), 12, selection="kmeans", generator=seeded()),
        "nystrom_leverage": Nystrom(kernels.RBF(1.0), 12, selection="leverage", generator=seeded()),
        "positive": PositiveRandomFeatures(40, generator=seeded()),
    }
    return {name: numbers(made.fit(x).kernel(new)) for name, made in maps.items()}


# ---------------------------------------------------------------------------------------------------------- bayes


def trained_on_wine(seed: int = 0) -> nn.Module:
    """A network of 100 rows; another seed is another start."""
    x, y = bundled("wine")
    model = mlp()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.from_numpy(np.random.default_rng(seed).random(tuple(parameter.shape)) - 0.5)
    return train(model, x[:100], y[:100], 60)


def loader(x: Tensor, y: Tensor) -> DataLoader:
    return DataLoader(TensorDataset(x, y), batch_size=32)


def posterior_values(posterior: bayes.LinearizedLaplace | bayes.TrajectoryGP, *, validate: bool = True) -> Values:
    x, y = bundled("wine")
    posterior.fit(loader(x[:100], y[:100]), loader(x[100:140], y[100:140]) if validate else None)
    new = torch.cat((x[140:144], 4 * x[144:146]))
    return {
        "proba": numbers(posterior.predict_proba(new)),
        "log_loss": numbers(metrics.nll(posterior.predict_proba(x[140:]), y[140:])),
    }


def laplace_values(posterior: bayes.LinearizedLaplace | bayes.KroneckerLaplace, *, validate: bool = True) -> Values:
    values = posterior_values(posterior, validate=validate)
    mean, covariance = posterior.logits(bundled("wine")[0][140:144])
    return values | {"mean": numbers(mean), "variance": numbers(covariance.diagonal(dim1=1, dim2=2))}


@case
def laplace_all() -> Values:
    return laplace_values(bayes.LinearizedLaplace(trained_on_wine(), parameters="all", generator=seeded()))


@case
def laplace_all_by_evidence() -> Values:
    made = bayes.LinearizedLaplace(
        trained_on_wine(), parameters="all", k=10, prior_precision="evidence", generator=seeded()
    )
    values = laplace_values(made, validate=False)
    return values | {"evidence": numbers(made.log_marginal_likelihood())}


@case
def laplace_last() -> Values:
    return laplace_values(bayes.LinearizedLaplace(trained_on_wine(), parameters="last", generator=seeded()))


@case
def laplace_of_numbers() -> Values:
    x, y = bundled("diabetes", 200)
    y = (y[:, None] - 150) / 75
    model = train(mlp(10, 12, 1), x[:120], y[:120], 60)
    made = bayes.LinearizedLaplace(
        model,
        parameters="all",
        likelihood="regression",
        k=1000,
        complement=True,
        prior_precision=2.0,
        generator=seeded(),
    ).fit(loader(x[:120], y[:120]))
    mean, variance = made.predict(x[120:128])
    return {"mean": numbers(mean), "variance": numbers(variance)}


@case
def laplace_kronecker() -> Values:
    return laplace_values(bayes.KroneckerLaplace(trained_on_wine(), generator=seeded()), validate=False)


@case
def trajectory_models() -> Values:
    models = [trained_on_wine(seed) for seed in range(4)]
    return posterior_values(bayes.TrajectoryGP(models, eigenfunctions="models", generator=seeded()))


@case
def trajectory_network() -> Values:
    models = [trained_on_wine(seed) for seed in range(4)]
    return posterior_values(bayes.TrajectoryGP(models, generator=seeded()))


@case
def temperature_scaling() -> Values:
    x, y = bundled("wine")
    made = bayes.TemperatureScaling(trained_on_wine()).fit(loader(x[:100], y[:100]), loader(x[100:140], y[100:140]))
    return {"proba": numbers(made.predict_proba(x[140:144]))}


@case
def deep_ensemble() -> Values:
    x, y = bundled("wine")
    made = bayes.DeepEnsemble([trained_on_wine(seed) for seed in range(3)]).fit(loader(x[:100], y[:100]))
    mean, covariance = made.logits(x[140:142])
    return {
        "proba": numbers(made.predict_proba(x[140:144])),
        "mean": numbers(mean),
        "covariance": numbers(covariance.diagonal(dim1=1, dim2=2)),
    }


@case
def familiarity() -> Values:
    x, y = bundled("digits", 700)
    model = train(mlp(64, 16, 10), x[:600], y[:600], 40)
    made = bayes.Familiarity(model, generator=seeded()).fit(loader(x[:600], y[:600]))
    return {"familiar": numbers(made.score(x[600:608])), "strange": numbers(made.score(3 * x[608:612].flip(1)))}


# ----------------------------------------------------------------------------------------------------- optimizers


def mlp_steps(make: Callable[[nn.Module], torch.optim.Optimizer], *, closure: bool = False) -> Values:
    x, y = bundled("wine", 100)
    model = mlp()
    return steps_of(make(model), model, x, y, closure=closure)


@case
def kernel_sgd() -> Values:
    return mlp_steps(lambda model: KernelSGD(model.parameters(), 0.05, model=model))


@case
def kernel_sgd_all_layers() -> Values:
    def make(model: nn.Module) -> KernelSGD:
        return KernelSGD(model.parameters(), 0.05, model=model, kernel=kernels.RBF(0.3), layers="all")

    return mlp_steps(make)


@case
def function_space_sgd() -> Values:
    return mlp_steps(lambda model: FunctionSpaceSGD(model.parameters(), model=model))


@case
def function_space_sgd_last_layer() -> Values:
    def make(model: nn.Module) -> FunctionSpaceSGD:
        return FunctionSpaceSGD(model.parameters(), 0.1, model=model, layers="last", damping=0.5, momentum=0.5)

    return mlp_steps(make)


@case
def function_space_sgd_cnn() -> Values:
    x, y = bundled("digits", 100)
    model = cnn()
    made = FunctionSpaceSGD(model.parameters(), 0.1, model=model)
    return steps_of(made, model, x.unflatten(1, (8, 8)), y, closure=False)


@case
def function_space_sgd_transformer() -> Values:
    x, y = bundled("digits", 100)
    model = fill(Transformer())
    made = FunctionSpaceSGD(model.parameters(), 0.1, model=model, momentum=0.9)
    return steps_of(made, model, x.unflatten(1, (8, 8)), y, closure=False)


@case
def eigenpro_sgd() -> Values:
    return mlp_steps(lambda model: EigenProSGD(model.parameters(), model=model))


@case
def esgd() -> Values:
    return mlp_steps(lambda model: ESGD(model.parameters(), 0.01, generator=seeded()), closure=True)


@case
def multi_batch_lbfgs() -> Values:
    return mlp_steps(lambda model: MultiBatchLBFGS(model.parameters(), 0.1), closure=True)


# ---------------------------------------------------------------------------------------------------------- heads


def five_steps(model: nn.Module, x: Tensor, y: Tensor) -> Values:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return steps_of(optimizer, model.train(), x, y, closure=False)


def head_values(head: nn.Module) -> Values:
    x, y = bundled("wine", 100)
    return five_steps(fill(head), x, y)


@case
def head_default() -> Values:
    return head_values(KernelClassifier(13, 3))


@case
def head_prototypes() -> Values:
    return head_values(KernelClassifier(13, 3, prototypes=3))


@case
def head_shared() -> Values:
    return head_values(KernelClassifier(13, 3, shared=8))


@case
def head_rbf() -> Values:
    return head_values(KernelClassifier(13, 3, kernels.RBF(2.0, learnable=True), temperature=0.5, bias=False))


@case
def head_gegenbauer() -> Values:
    series = kernels.RadialSeries(6, basis="gegenbauer", positivity="softplus", init="ones", indicators="limit")
    return head_values(KernelClassifier(13, 3, series))


@case
def head_from_means() -> Values:
    x, y = bundled("wine", 100)
    head = fill(KernelClassifier(13, 3))
    head.init_from(x, y)
    return five_steps(head, x, y) | {"weight": numbers(head.weight)}


@case
def head_cosine() -> Values:
    return head_values(CosineClassifier(13, 3))


@case
def head_second_order() -> Values:
    return head_values(SecondOrderPooling(13, 3, rank=4))


@case
def head_in_the_place_of_a_layer() -> Values:
    x, y = bundled("digits", 100)
    return five_steps(fill(kernelize(cnn())), x.unflatten(1, (8, 8)), y)


@case
def head_before_pooling() -> Values:
    x, y = bundled("digits", 100)
    layers = [nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = kernelize(
        fill(nn.Sequential(*layers, nn.Linear(6, 10))),
        place="before_pooling",
        head=lambda d, c: KernelClassifier(d, c, shared=8),
    )
    return five_steps(fill(model), x.unflatten(1, (8, 8)), y)


@case
def layer_and_losses() -> Values:
    x, y = bundled("digits", 40)
    pictures = x.unflatten(1, (1, 8, 8))
    layer = fill(Kervolution2d(1, 4, 3, padding=1))
    head = fill(KernelClassifier(64, 10))
    logits = head(x)
    return {
        "kervolution": numbers(layer(pictures)),
        "distillation": numbers(distillation_loss(logits, logits.flip(1))),
        "sampled": numbers(sampled_cross_entropy(head, x, y, samples=4, generator=seeded())),
    }


# ------------------------------------------------------------------------------------------------------- spectrum


def spectrum_values(spectrum: spectral.Spectrum) -> Values:
    return {
        "eigenvalues": numbers(spectrum.eigenvalues),
        "projections": numbers(spectrum.projections),
        "complexity": numbers(spectrum.complexity),
        "lower": numbers(spectrum.bracket[0]),
        "effective_dimension": numbers(spectrum.effective_dimension),
        "alignment": numbers(spectrum.alignment),
        "convergence": numbers(spectrum.convergence(0.01, 40)),
    }


@case
def spectrum_of_classes() -> Values:
    x, y = bundled("wine", 120)
    return spectrum_values(spectral.analyze(kernels.ReLUGram(), x, y, k=10))


@case
def spectrum_of_numbers() -> Values:
    x, y = bundled("diabetes", 150)
    return spectrum_values(spectral.analyze(kernels.Laplacian(0.1), x, (y - y.mean()) / y.std(), k=10))


def ranking_values(table: pd.DataFrame, names: list[str], columns: list[str]) -> Values:
    values = {column: numbers(table[column]) for column in columns}
    return {"order": numbers([names.index(name) for name in table.index])} | values


@case
def spectra_compared() -> Values:
    x, y = bundled("breast_cancer", 150)
    candidates = {
        "laplacian": kernels.Laplacian(0.02),
        "relu": kernels.ReLUGram(),
        "two_columns": x[:, :2],
        "map": RandomFourier(kernels.RBF(0.01), 60, generator=seeded()).fit(x),
    }
    columns = ["ratio", "complexity", "alignment", "effective_dimension"]
    return ranking_values(spectral.compare(candidates, x, y), list(candidates), columns)


@case
def spectra_of_layers() -> Values:
    x, y = bundled("wine")
    model = fill(nn.Sequential(nn.Linear(13, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)))
    train(model, x[:100], y[:100], 30)
    table = spectral.layers(model, loader(x[100:], y[100:]), ["0", "2"])
    return ranking_values(table, ["0", "2"], ["ratio", "complexity"])


# -------------------------------------------------------------------------------------------------------- kernels


def gram_values(kernel: kernels.Kernel, x: Tensor) -> list[float]:
    """Some of K, of its diagonal by the short way, and of a product without K."""
    gram = kernel(x)
    vector = torch.linspace(1, 2, len(x), dtype=x.dtype)[:, None]
    product = kernel.matmul(x, x, vector)[:, 0]
    return numbers(torch.stack([*gram[0], *gram[1, 1:4], kernel.diag(x)[4], product[0], product[4]]))


@case
def kernels_of_vectors() -> Values:
    x = points(5, 3)
    made = {
        "linear": kernels.Linear(),
        "polynomial": kernels.Polynomial(3, 0.7, 1.3),
        "rbf": kernels.RBF(0.7),
        "rbf_by_column": kernels.RBF([0.3, 0.7, 1.1]),
        "rbf_from_data": kernels.RBF.from_data(x),
        "laplacian": kernels.Laplacian(0.7),
        "matern_half": kernels.Matern(0.5, 1.2),
        "matern_three_halves": kernels.Matern(1.5, 1.2),
        "matern_five_halves": kernels.Matern(2.5, 1.2),
        "rational_quadratic": kernels.RationalQuadratic(0.8, 1.2),
        "periodic": kernels.Periodic(1.7, 1.2),
        "constant": kernels.Constant(1.5),
        "cosine": kernels.Cosine(),
        "arc_cosine_0": kernels.ArcCosine(0),
        "arc_cosine_1": kernels.ArcCosine(1),
        "function": kernels.FunctionKernel(lambda a, b: (a @ b.mT).tanh()),
        "sum": kernels.RBF(0.7) + kernels.Linear(),
        "product": kernels.RBF(0.7) * kernels.Polynomial(2),
        "scaled": 2.0 * kernels.RBF(0.7),
        "power": kernels.Laplacian(0.7) ** 3,
        "normalized": kernels.Polynomial(2).normalized(),
        "relu": kernels.ReLUGram(),
        "relu_of_rbf": kernels.ReLUGram(kernels.RBF(0.7)),
        "radial_monomial": kernels.RadialSeries(5, init="ones"),
        "radial_gegenbauer": kernels.RadialSeries(5, basis="gegenbauer", init="ones", dim=3),
        "radial_exact_indicators": kernels.RadialSeries(5, init="ones", indicators="exact"),
        "radial_softmax": kernels.RadialSeries(5, positivity="softmax", indicators="limit"),
    }
    values = {name: gram_values(kernel, x) for name, kernel in made.items()}
    number = torch.tensor([[0], [1], [2], [3], [4]])
    values["precomputed"] = numbers(kernels.Precomputed(made["sum"](x))(number[[1, 3]], number))
    coefficients = kernels.RadialSeries(8, init="ones").coefficients.detach()
    values["truncation_bound"] = numbers(kernels.truncation_bound(coefficients, 4))
    return values


@case
def kernels_of_infinite_networks() -> Values:
    x = points(5, 3)
    pictures = points(5, 32).unflatten(1, (2, 4, 4))
    made = {}
    for name, dense, convolutional in (
        ("nngp", kernels.NNGP, kernels.ConvNNGP),
        ("ntk", kernels.NTK, kernels.ConvNTK),
    ):
        made[name] = gram_values(dense(), x)
        made[f"{name}_deep"] = gram_values(dense(3, "relu", 1.8, 0.1), x)
        made[f"{name}_erf"] = gram_values(dense(2, "erf", 1.5, 0.2), x)
        made[f"conv_{name}"] = numbers(convolutional(2, "relu", 1.9, 0.1)(pictures))
        made[f"conv_{name}_erf"] = numbers(convolutional(1, "erf")(pictures))
    return made


@case
def kernels_of_finite_networks() -> Values:
    x = points(5, 3)
    model = fill(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight *= 1.1
        other[2].weight *= 0.8
    return {
        "empirical_trace": numbers(kernels.EmpiricalNTK(model)(x)),
        "empirical_full": numbers(kernels.EmpiricalNTK(model, outputs="full")(x)),
        "empirical_one": numbers(kernels.EmpiricalNTK(model, outputs=1)(x)),
        "empirical_jvp": numbers(kernels.EmpiricalNTK(model, method="jvp", samples=20, generator=seeded())(x)),
        "trajectory": numbers(kernels.Trajectory([model, other])(x)),
    }


@case
def kernel_functionals() -> Values:
    x, y = bundled("wine", 60)
    gram, labels = kernels.RBF(0.05)(x), F.one_hot(y, 3).double()
    target = labels @ labels.mT
    return {
        "hsic": numbers([functionals.hsic(gram, target), functionals.hsic(gram, target, unbiased=True)]),
        "cka": numbers(functionals.cka(gram, target)),
        "alignment": numbers(functionals.target_alignment(gram, target)),
        "center": numbers(functionals.center(gram)),
    }
