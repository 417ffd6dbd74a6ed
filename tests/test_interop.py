"""Doors to other libraries: scikit-learn, gpytorch, the Hub's mixin, torch.export and ONNX. Both sides must agree."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine, make_moons
from sklearn.decomposition import KernelPCA
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from torch import nn

import mercer
from mercer import kernels
from mercer.features import Nystrom
from mercer.kernels import (
    NTK,
    RBF,
    Linear,
    Matern,
    Periodic,
    Polynomial,
    RadialSeries,
    RationalQuadratic,
    Scaled,
    from_gpytorch,
    to_gpytorch,
)
from mercer.layerwise import KernelNetworkClassifier, KernelNetworkRegressor
from mercer.nn import KernelClassifier, kernelize

# --- scikit-learn -------------------------------------------------------------------------------------------


def moons():
    return make_moons(120, noise=0.2, random_state=0)


def test_svc_and_svr_take_kernel_numpy():
    X, y = moons()
    ours, theirs = SVC(kernel=RBF(0.7).numpy).fit(X, y), SVC(kernel="rbf", gamma=0.7).fit(X, y)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-6)
    ours, theirs = SVR(kernel=RBF(0.7).numpy).fit(X, X[:, 0]), SVR(kernel="rbf", gamma=0.7).fit(X, X[:, 0])
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-6)


def test_svc_with_a_kernel_survives_pipelines_and_cross_validation():
    X, y = moons()
    kernel = 2.0 * RBF(1.0, learnable=True) + NTK(depth=2)  # no kernel of scikit-learn's own
    scores = cross_val_score(make_pipeline(StandardScaler(), SVC(kernel=kernel.numpy)), X, y, cv=3)
    assert scores.mean() > 0.9


def test_kernels_are_parameters_of_a_scikit_learn_search():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    grid = {"kernelridge__kernel": [RBF(1e-6), Matern(1.5)]}
    pipeline = make_pipeline(StandardScaler(), mercer.machines.KernelRidge(penalty=0.1))
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, np.sin(3 * X[:, 0]))
    assert isinstance(search.best_params_["kernelridge__kernel"], Matern)
    assert search.predict(X[:4]).shape == (4,)


def test_precomputed_estimators_take_gram_matrices():
    X, y = moons()
    kernel = Polynomial(degree=2, gamma=0.5)
    gram = kernel.numpy(X)
    ours = KernelRidge(kernel="precomputed", alpha=0.1).fit(gram, y).predict(kernel.numpy(X[:9], X))
    theirs = KernelRidge(kernel="poly", degree=2, gamma=0.5, coef0=1.0, alpha=0.1).fit(X, y).predict(X[:9])
    np.testing.assert_allclose(ours, theirs, atol=1e-9)
    ours = KernelPCA(3, kernel="precomputed").fit(gram).eigenvalues_
    np.testing.assert_allclose(ours, KernelPCA(3, kernel="poly", degree=2, gamma=0.5).fit(X).eigenvalues_)


# --- gpytorch -----------------------------------------------------------------------------------------------


@pytest.fixture
def gp():
    return pytest.importorskip("gpytorch", reason="gpytorch is in the extra 'peers'")


def rows(n=9, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs(gp):
    """A kernel of gpytorch, and what it is in Mercer's terms."""
    k, scale = gp.kernels, float(np.log(2.0))  # gpytorch starts its positive parameters at softplus(0)
    return {
        "rbf": (k.RBFKernel(), RBF(1 / (2 * scale**2))),
        "ard": (k.RBFKernel(ard_num_dims=3), RBF(torch.full((3,), 1 / (2 * scale**2), dtype=torch.float64))),
        "matern0.5": (k.MaternKernel(nu=0.5), Matern(0.5, scale)),
        "matern1.5": (k.MaternKernel(nu=1.5), Matern(1.5, scale)),
        "matern2.5": (k.MaternKernel(nu=2.5), Matern(2.5, scale)),
        "rq": (k.RQKernel(), RationalQuadratic(scale, scale)),
        "periodic": (k.PeriodicKernel(), Periodic(scale, scale**0.5)),
        "linear": (k.LinearKernel(), scale * Linear()),
        "polynomial": (k.PolynomialKernel(power=3), Polynomial(3, coef0=scale)),
        "algebra": (
            k.ScaleKernel(k.RBFKernel()) + k.MaternKernel(nu=1.5) * k.LinearKernel(),
            scale * RBF(1 / (2 * scale**2)) + Matern(1.5, scale) * (scale * Linear()),
        ),
    }


@pytest.mark.parametrize(
    "case", ["rbf", "ard", "matern0.5", "matern1.5", "matern2.5", "rq", "periodic", "linear", "polynomial", "algebra"]
)
def test_gpytorch_kernels_come_in(case, gp):
    theirs, same = pairs(gp)[case]
    ours = from_gpytorch(theirs.double())
    x, y, v = rows(), rows(5, seed=1), rows(5, 2, seed=2)
    tight = {"atol": 1e-6, "rtol": 1e-6}  # gpytorch starts from a float32 zero
    torch.testing.assert_close(ours(x, y), same(x, y), **tight)
    torch.testing.assert_close(ours.diag(x), ours(x).diagonal(), atol=1e-10, rtol=0)
    torch.testing.assert_close(ours.matmul(x, y, v, block=4), same(x, y) @ v, **tight)
    torch.testing.assert_close((2.0 * ours + RBF())(x), 2.0 * same(x) + RBF()(x), **tight)


def test_gradients_reach_the_hyper_parameters_of_a_kernel_that_came_in(gp):
    theirs = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())
    ours = from_gpytorch(theirs)
    assert set(map(id, ours.parameters())) == set(map(id, theirs.parameters()))
    wanted = torch.autograd.grad(theirs(rows()).to_dense().sum(), list(theirs.parameters()))
    got = torch.autograd.grad(ours(rows()).sum(), list(theirs.parameters()))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
        assert float(a.abs().sum()) > 0


def test_a_kernel_of_gpytorch_works_in_a_head_and_a_map(gp):
    kernel = from_gpytorch(gp.kernels.MaternKernel(nu=2.5).double())
    features = Nystrom(kernel, 6, generator=torch.Generator().manual_seed(0)).fit(rows(40))
    assert features(rows()).shape == (9, 6)
    head = KernelClassifier(3, 2, kernel).double()
    nn.functional.cross_entropy(head(rows()), torch.arange(9) % 2).backward()
    assert float(kernel.kernel.raw_lengthscale.grad.abs()) > 0


@pytest.mark.parametrize("make", [lambda: RBF(0.4, learnable=True), lambda: 2.0 * RBF() + NTK(depth=2), RadialSeries])
def test_kernels_go_out_to_gpytorch(make, gp):
    kernel = make().double()
    theirs = to_gpytorch(kernel)
    x, y = rows(), rows(5, seed=1)
    torch.testing.assert_close(theirs(x, y).to_dense(), kernel(x, y))
    torch.testing.assert_close(theirs(x, diag=True), kernel.diag(x))
    batch = torch.stack([x, 2 * x])[:, None]  # (2, 1, n, d)
    both = theirs(batch, y).to_dense()
    torch.testing.assert_close(both, torch.stack([kernel(x, y), kernel(2 * x, y)])[:, None])
    torch.testing.assert_close(theirs(batch, diag=True), torch.stack([kernel.diag(x), kernel.diag(2 * x)])[:, None])
    other = rows(9, seed=3)  # the diagonal of two sets of rows is not that of the first
    torch.testing.assert_close(theirs(x, other, diag=True), kernel(x, other).diagonal())
    torch.testing.assert_close(theirs(batch, other, diag=True)[1, 0], kernel(2 * x, other).diagonal())


@pytest.mark.parametrize(("kernel", "stationary"), [(2.0 * RBF(0.4) + Matern(), True), (RBF() * Linear(), False)])
def test_what_went_out_to_gpytorch_is_copied_and_stored(kernel, stationary, gp):
    theirs, x = to_gpytorch(kernel).double(), rows()
    assert theirs.is_stationary is stationary and from_gpytorch(gp.kernels.RBFKernel()).is_stationary
    file = io.BytesIO()
    torch.save(theirs, file)
    file.seek(0)
    unpickled = pickle.loads(pickle.dumps(theirs))  # noqa: S301
    for other in (unpickled, copy.deepcopy(theirs), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(x).to_dense(), kernel(x))
        assert other.kernel is not kernel


def test_an_exact_gp_of_gpytorch_trains_a_mercer_kernel_as_its_own(gp):
    x = torch.linspace(0, 1, 30, dtype=torch.float64)[:, None]
    y = (6 * x[:, 0]).sin()

    class GP(gp.models.ExactGP):
        def __init__(self, kernel, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module, self.covar_module = gp.means.ZeroMean(), kernel

        def forward(self, x):
            return gp.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    kernel = RBF(2.0, learnable=True)
    likelihood = gp.likelihoods.GaussianLikelihood().double()
    model = GP(to_gpytorch(Scaled(kernel, 1.0, learnable=True)), likelihood).double()
    likelihood_of = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -likelihood_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.5
    assert float(kernel.gamma) > 3.0
    model.eval(), likelihood.eval()
    new = torch.tensor([[0.31], [0.77]], dtype=torch.float64)
    mean = model(new).mean.detach()
    noise = likelihood.noise.detach() * torch.eye(30, dtype=torch.float64)
    full = model.covar_module.kernel
    exact = full(new, x) @ torch.linalg.solve(full(x) + noise, y)
    torch.testing.assert_close(mean, exact.detach(), atol=1e-6, rtol=0)


def test_there_and_back_is_the_same_kernel(gp):
    theirs, ours = gp.kernels.RBFKernel(), RBF()
    assert to_gpytorch(from_gpytorch(theirs)) is theirs
    assert from_gpytorch(to_gpytorch(ours)) is ours


def test_what_gpytorch_kernels_cannot_be_is_said(gp, tmp_path):
    with pytest.raises(TypeError, match=r"from_gpytorch: kernel must be a gpytorch.kernels.Kernel; got RBF\."):
        from_gpytorch(RBF())
    with pytest.raises(TypeError, match=r"to_gpytorch: kernel must be a mercer.kernels.Kernel; got RBFKernel\."):
        to_gpytorch(gp.kernels.RBFKernel())
    with pytest.raises(ValueError, match=r"from_gpytorch: kernel must be no batch; got batch \(2,\)\."):
        from_gpytorch(gp.kernels.RBFKernel(batch_shape=torch.Size([2])))
    tasks = gp.kernels.MultitaskKernel(gp.kernels.RBFKernel(), num_tasks=2)
    with pytest.raises(ValueError, match=r"kernel must give one value for two rows; got 2 of MultitaskKernel\."):
        from_gpytorch(tasks)(rows(3))
    with pytest.raises(TypeError, match=r"mercer.save: .* got the module RBFKernel"):
        mercer.save(from_gpytorch(gp.kernels.RBFKernel()), tmp_path / "kernel")


def test_without_gpytorch_one_sentence_says_so(monkeypatch):
    kernels.gpytorch._outgoing_class.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "gpytorch", None)
    with pytest.raises(ImportError, match=r"to_gpytorch: gpytorch must be installed; .* pip install 'mercer\[peers\]'"):
        to_gpytorch(RBF())


# --- the Hub's mixin ----------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the extra 'hub'").PyTorchModelHubMixin


def net(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 3))


def classes_with(mixin):
    class HeadFirst(KernelClassifier, mixin):
        pass

    class MixinFirst(mixin, KernelClassifier):
        pass

    class Kernelized(nn.Module, mixin):
        def __init__(self, width: int, prototypes: int = 2):
            super().__init__()
            make = lambda d, c: KernelClassifier(d, c, RBF(0.3, learnable=True), prototypes=prototypes)  # noqa: E731
            self.net = kernelize(net(width), head=make)

        def forward(self, x):
            return self.net(x)

    class Map(nn.Module, mixin):
        def __init__(self, gamma: float, m: int):
            super().__init__()
            self.map = Nystrom(RBF(gamma), m)

        def forward(self, x):
            return self.map(x)

    heads = {"head": (HeadFirst, (8, 3)), "mixin first": (MixinFirst, (8, 3))}
    return {**heads, "model": (Kernelized, (12,)), "map": (Map, (0.2, 5))}


@pytest.mark.parametrize("case", ["head", "mixin first", "model", "map"])
def test_the_hub_mixin_saves_and_loads(case, hub, tmp_path):
    cls, arguments = classes_with(hub)[case]
    model, x = cls(*arguments), torch.randn(20, 8)
    if case == "map":
        model.map.fit(x)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(cls.from_pretrained(tmp_path, strict=True)(x), model(x), atol=0, rtol=0)
    assert (tmp_path / "model.safetensors").exists()


def test_a_kernel_that_the_hub_config_cannot_carry_is_noticed(hub, tmp_path):
    cls, _ = classes_with(hub)["head"]
    cls(8, 3, RBF(0.5, learnable=True)).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"kernel\.alpha"):
        cls.from_pretrained(tmp_path, strict=True)


# --- torch.export and ONNX ----------------------------------------------------------------------------------

SAMPLES = ({0: torch.export.Dim.DYNAMIC},)


def picture_net():
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return kernelize(nn.Sequential(*layers)).eval(), torch.randn(4, 1, 8, 8), torch.randn(7, 1, 8, 8)


def kernelized(make):
    return kernelize(net(), head=make).eval(), torch.randn(4, 8), torch.randn(9, 8)


def fitted(estimator):
    X, y = load_wine(return_X_y=True)
    return estimator.fit(X[::2], y[::2]).to_module(), torch.tensor(X[:4]), torch.tensor(X[:9])


EXPORTED = {
    "pictures": picture_net,
    "prototypes": lambda: kernelized(lambda d, c: KernelClassifier(d, c, prototypes=3, bias=True, temperature=0.5)),
    "gegenbauer": lambda: kernelized(lambda d, c: KernelClassifier(d, c, RadialSeries(basis="gegenbauer"))),
    "distances": lambda: kernelized(lambda d, c: KernelClassifier(d, c, RBF(2.0, learnable=True) + Matern(2.5))),
    "auto": lambda: fitted(KernelNetworkClassifier(random_state=0)),
    "gaussian": lambda: fitted(KernelNetworkClassifier(kernel="gaussian", random_state=0)),
    "closed_form": lambda: fitted(KernelNetworkClassifier(solver="closed_form", random_state=0)),
    "spectral": lambda: fitted(KernelNetworkClassifier(solver="spectral", random_state=0)),
    "regressor": lambda: fitted(KernelNetworkRegressor(random_state=0)),
}


@pytest.mark.parametrize("case", EXPORTED)
def test_torch_export_with_a_free_number_of_rows(case):
    torch.manual_seed(0)
    model, few, more = EXPORTED[case]()
    graph = torch.export.export(model, (few,), dynamic_shapes=SAMPLES).module()
    for x in (few, more):
        torch.testing.assert_close(graph(x), model(x))


@pytest.mark.parametrize("case", ["prototypes", "distances", "gaussian"])  # ONNX Runtime has no arc cosine in float64
@pytest.mark.filterwarnings("ignore")  # the converter's own, of its dependencies
def test_onnx_runtime_gives_the_same(case, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is in the extra 'export'")
    import onnxruntime

    torch.manual_seed(0)
    model, few, more = EXPORTED[case]()
    torch.onnx.export(model, (few,), tmp_path / "model.onnx", dynamo=True, dynamic_shapes=SAMPLES, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for x in (few, more):
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(out, model(x).detach().numpy(), atol=1e-5)
