"""The contract with users: every public name, with its arguments and their defaults, as DESIGN gives them."""

import ast
import importlib
import inspect

import pytest

import mercer

# One line for each name. A default of ... is any default; an argument that is not named here must have one.
CONTRACT = """
kernels.Linear()
kernels.Polynomial(degree=3, gamma=1.0, coef0=1.0, *, learnable=False)
kernels.RBF(gamma=1.0, *, learnable=False)
kernels.RBF.from_data(x)
kernels.Laplacian(gamma=1.0, *, learnable=False)
kernels.Matern(nu=1.5, lengthscale=1.0, *, learnable=False)
kernels.RationalQuadratic(*, learnable=False)
kernels.Periodic(*, learnable=False)
kernels.Constant(value=..., *, learnable=False)
kernels.Cosine()
kernels.ArcCosine(order=1)
kernels.Precomputed(gram)
kernels.FunctionKernel(f)
kernels.RadialSeries(order=10, *, basis="monomial", positivity="relu", init="unit", indicators="off", dim=None)
kernels.infinite_width(model, *, kind="ntk", example=None)
kernels.NNGP(depth=1, activation="relu", weight_var=2.0, bias_var=0.0)
kernels.NTK(depth=1, activation="relu", weight_var=2.0, bias_var=0.0)
kernels.ConvNNGP(depth=1, activation="relu", weight_var=2.0, bias_var=0.0)
kernels.ConvNTK(depth=1, activation="relu", weight_var=2.0, bias_var=0.0)
kernels.EmpiricalNTK(model, *, outputs="trace", method="exact", samples=..., block=...)
kernels.MonteCarloNNGP(make_model, samples=...)
kernels.Trajectory(models)
kernels.ReLUGram(base=None)
kernels.to_gpytorch(kernel)
kernels.from_gpytorch(kernel)
kernels.truncation_bound(alphas, order)
kernels.Sum(left, right)
kernels.Product(left, right)
kernels.Scaled(kernel, scale=...)
kernels.Power(kernel, exponent)
kernels.Normalized(kernel)
kernels.Kernel.forward(self, x, y=None)
kernels.Kernel.diag(self, x)
kernels.Kernel.normalized(self)
kernels.Kernel.matmul(self, x, y, v, *, block=None)
kernels.Kernel.numpy(self, X, Y=None)
kernels.functionals.hsic(K, L, *, unbiased=False)
kernels.functionals.cka(K, L)
kernels.functionals.target_alignment(K, targets)
kernels.functionals.center(K)

features.FeatureMap.fit(self, x, y=None)
features.FeatureMap.kernel(self, x, y=None)
features.FeatureMap.transform(self, x)
features.RandomFourier(kernel, m, *, orthogonal=False, generator=None)
features.PositiveRandomFeatures(m, *, generator=None)
features.Nystrom(kernel, m, *, selection="uniform", generator=None)
features.Nystrom.eigenfunctions(self, x)
features.NeuralEigenfunctions(kernel, k, *, network=None, method="auto", ritz=True, generator=None)
features.NeuralEigenfunctions.eigenfunctions(self, x)

machines.KernelRidge(kernel=None, *, penalty="loo", solver="auto", landmarks=None, random_state=None)
machines.KernelRidge.fit(self, x, y=None)
machines.KernelRidge.partial_fit(self, x, y=None)
machines.KernelRidge.predict(self, x)
machines.KernelRidge.variance(self, x)
machines.StackedRidge(*, random_state=None)

nn.KernelClassifier(in_features, num_classes, kernel=None, *, prototypes=1, shared=None, bias=True, temperature=None)
nn.KernelClassifier.init_from(self, embeddings, labels=None)
nn.kernelize(model, *, layer=None, head=None, rectify=False, place="head", loader=None)
nn.CosineClassifier(in_features, num_classes)
nn.SecondOrderPooling(in_features, num_classes)
nn.Kervolution2d(in_channels, out_channels, kernel_size)
nn.L2BatchNorm(num_features)
nn.distillation_loss(student, teacher, temperature=20.0)
nn.sampled_cross_entropy(head, z, labels)

optim.KernelSGD(params, lr, *, model, kernel=None, layers="last")
optim.FunctionSpaceSGD(params, lr=0.3, *, model, layers="all", damping=..., momentum=0.8)
optim.EigenProSGD(params, lr="auto", *, model)

layerwise.KernelNetworkClassifier(*, solver="auto", kernel="auto", max_layers=..., random_state=None)
layerwise.KernelNetworkRegressor(*, kernel="auto", max_layers=..., random_state=None)

spectral.analyze(kernel, x, targets=None, *, k=50, floor=None)
spectral.compare(candidates, x, targets=None)
spectral.layers(model, loader, names=None)
spectral.Spectrum.convergence(self, lr, steps)
spectral.Spectrum.plot(self)

bayes.LinearizedLaplace(model, *, likelihood="classification", k=None, complement=True, prior_precision="validation")
bayes.TrajectoryGP(models, *, eigenfunctions="network")
bayes.KroneckerLaplace(model)
bayes.TemperatureScaling(model)
bayes.DeepEnsemble(models)
bayes.DeepEnsemble.train(make_model, loader, n=...)
bayes.Snapshots(model)
bayes.Posterior.fit(self, loader, val_loader=None)
bayes.Posterior.predict_proba(self, x)
bayes.Posterior.predict(self, x)
bayes.Posterior.logits(self, x)
bayes.Posterior.sample(self, x, n)
bayes.LinearizedLaplace.log_marginal_likelihood(self)
bayes.Familiarity(model)
bayes.Familiarity.fit(self, loader)
bayes.Familiarity.score(self, x)

tabular.TabularModel(*, task="auto", trees="auto", class_weight=None, time=None, groups=None, random_state=0)
tabular.TabularModel.fit(self, frame, target, sample_weight=None)
tabular.TabularModel.predict(self, frame)
tabular.TabularModel.explain(self)
tabular.TabularClassifier(*, trees="auto", class_weight=None, time=None, groups=None, random_state=0)
tabular.TabularClassifier.fit(self, X, y, sample_weight=None)
tabular.TabularClassifier.predict(self, X)
tabular.TabularClassifier.predict_proba(self, X)
tabular.TabularClassifier.unfamiliar(self, X)
tabular.TabularRegressor(*, trees="auto", time=None, groups=None, random_state=0)
tabular.TabularRegressor.fit(self, X, y, sample_weight=None)
tabular.TabularRegressor.predict(self, X)
tabular.TabularRegressor.predict_interval(self, X)
tabular.TabularRegressor.predict_quantiles(self, X, levels=...)
tabular.TabularRegressor.unfamiliar(self, X)
tabular.diagnose(frame, target)
tabular.read(path)

signals.embeddings(model, loader, layer=None)
modules.embeddings(model, loader, layer=None)
rows.open_rows(path)
modules.open_rows(path)
distributed.joined()
distributed.expect(ranks)
distributed.shard(n)
distributed.alone()
save(obj, folder)
load(folder)
"""
LINES = [line for line in CONTRACT.splitlines() if line]
# What users meet without constructing it: base classes, the answer of `analyze`, a module.
NOT_CONSTRUCTED = {
    "kernels": {"Kernel", "NetworkKernel", "functionals"},
    "features": {"FeatureMap"},
    "bayes": {"Posterior"},
    "spectral": {"Spectrum"},
}
PACKAGES = (
    "kernels", "features", "machines", "nn", "optim", "layerwise", "spectral", "bayes", "tabular", "signals", "rows",
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_public_name_takes_the_arguments_of_the_contract(line):
    name, arguments = line.split("(", 1)
    promised = inspect.signature(eval(f"lambda {arguments.removesuffix(')')}: None"))

    value = mercer
    for part in name.split("."):
        value = getattr(value, part)
    actual = dict(inspect.signature(value).parameters)

    # Arguments by position come in the promised order, and all that are promised have the promised default.
    by_position = [p.name for p in promised.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(actual)[: len(by_position)] == by_position
    for parameter in promised.parameters.values():
        default = actual.pop(parameter.name).default
        if parameter.default is ...:
            assert default is not inspect.Parameter.empty
        else:
            assert default == parameter.default and type(default) is type(parameter.default), parameter.name

    # Any other argument may be left out.
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    assert all(p.default is not inspect.Parameter.empty or p.kind in optional for p in actual.values())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_the_names_of_the_contract_and_no_others(package):
    calls = [line.split("(")[0].split(".") for line in LINES]
    promised = {path[1] for path in calls if path[0] == package} | NOT_CONSTRUCTED.get(package, set())
    assert set(importlib.import_module(f"mercer.{package}").__all__) == promised


def test_inner_packages_offer_nothing():
    for package in ("figures", "linalg", "storage"):
        module = importlib.import_module(f"mercer.{package}")
        assert not hasattr(module, "__all__")
        tree = ast.parse(inspect.getsource(module))
        assert [type(node) for node in tree.body] == [ast.Expr], f"mercer.{package} holds more than its docstring"
