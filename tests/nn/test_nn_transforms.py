"""Heads under what torch does to modules: derivatives of every mode, tracing, compiling, sharding, bare memory."""

import pytest
import torch
from torch import fx, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mercer.kernels import Cosine, Matern, RadialSeries
from mercer.nn import KernelClassifier
from tests.nn.cases import HEADS, C, D, rows


@pytest.fixture(params=HEADS, ids=str)
def head(request):
    torch.manual_seed(7)  # not the seed of the rows: weights on top of an embedding have a kink in the RBF
    return HEADS[request.param]()


def test_compiles_and_exports(head):
    z = rows(dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z), head(z))
    exported = torch.export.export(head, (z,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    torch.testing.assert_close(exported.module()(z[:4]), head(z[:4]))


def test_torch_func_per_sample_gradients_and_hessians(head):
    head.double()
    z, parameters = rows(3), {name: p.detach() for name, p in head.named_parameters()}

    def loss(p, row):
        return torch.func.functional_call(head, p, (row[None],)).logsumexp(1).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, z)
    for name, parameter in head.named_parameters():
        (expected,) = torch.autograd.grad(loss(dict(head.named_parameters()), z[1]), parameter, allow_unused=True)
        torch.testing.assert_close(each[name][1], torch.zeros_like(parameter) if expected is None else expected)
    hessian = torch.func.hessian(lambda row: loss(parameters, row))(z[0])
    torch.testing.assert_close(hessian, torch.func.jacrev(torch.func.jacrev(lambda row: loss(parameters, row)))(z[0]))


def test_jacobians_of_every_mode_agree(head):
    """vectorize=True, is_grads_batched and forward mode, each against one row of the Jacobian at a time."""
    head.double()
    z = rows(4)
    expected = torch.autograd.functional.jacobian(head, z)
    for strategy in ("reverse-mode", "forward-mode"):
        found = torch.autograd.functional.jacobian(head, z, vectorize=True, strategy=strategy)
        torch.testing.assert_close(found, expected)
    z.requires_grad_()
    wanted = [z, *(p for p in head.parameters() if p.requires_grad)]
    logits = head(z)
    eye = torch.eye(logits.numel(), dtype=z.dtype).reshape(-1, *logits.shape)
    batched = torch.autograd.grad(logits, wanted, eye, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(logits, wanted, row, retain_graph=True) for row in eye]
    for found, single in zip(batched, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(single))


def test_forward_mode_agrees_with_finite_differences(head):
    head.double()
    z, tangent, step = rows(4), rows(4, seed=1), 1e-6
    parameters = {name: p.detach() for name, p in head.named_parameters()}
    moves = {name: torch.full_like(p, 0.3) for name, p in parameters.items()}

    def logits(x, p):
        return torch.func.functional_call(head, p, (x,))

    def moved(s):
        return logits(z + s * tangent, {name: p + s * moves[name] for name, p in parameters.items()})

    _, found = torch.func.jvp(logits, (z, parameters), (tangent, moves))
    # Central differences: an error of step^2 times a third derivative, and rounding over the step.
    torch.testing.assert_close(found, (moved(step) - moved(-step)) / (2 * step), rtol=1e-6, atol=1e-6)


def test_symbolic_traces_keep_logits_and_learn(head):
    z = rows(dtype=torch.float32)
    for model in (head, nn.Sequential(nn.Linear(D, D), head)):
        traced = fx.symbolic_trace(model)
        torch.testing.assert_close(traced(z), model(z))
        traced(z).logsumexp(1).sum().backward()
        assert all(p.grad is not None for p in traced.parameters())
    if isinstance(head, KernelClassifier):
        torch.testing.assert_close(fx.symbolic_trace(head)(z.reshape(2, 3, D)), head(z).reshape(2, 3, C))


def test_heads_of_other_kernels_are_traced():
    z = rows(dtype=torch.float32)
    for kernel in (RadialSeries(3, indicators="exact"), RadialSeries(3, indicators="limit"), Cosine(), Matern()):
        head = KernelClassifier(D, C, kernel)
        torch.testing.assert_close(fx.symbolic_trace(head)(z), head(z))


def test_skipped_and_late_initialisation(head, request):
    """torch.nn.utils.skip_init, and modules that are made on the meta device and get their memory later."""
    z = rows(dtype=torch.float32)
    bare = nn.utils.skip_init(KernelClassifier if isinstance(head, KernelClassifier) else type(head), D, C)
    assert not any(p.is_meta for p in bare.parameters())
    with torch.device("meta"):
        late = HEADS[request.node.callspec.params["head"]]()
    late.to_empty(device="cpu")
    for module in late.modules():
        getattr(module, "reset_parameters", lambda: None)()
    if "rbf" not in request.node.callspec.params["head"]:  # its kernel has no start of its own
        logits = late(z)
        logits.logsumexp(1).sum().backward()
        assert torch.isfinite(logits).all()
    late.load_state_dict(head.state_dict())
    torch.testing.assert_close(late(z), head(z))


def test_parameters_are_sharded_by_fsdp2(head, tmp_path):
    z = rows(dtype=torch.float32)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(D, D), head)
        expected = model(z).detach()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        logits = model(z)
        torch.testing.assert_close(logits.detach(), expected)
        logits.logsumexp(1).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        assert (model(z).detach() - expected).abs().max() > 0
    finally:
        torch.distributed.destroy_process_group()


def test_every_parameter_has_a_dimension(head):
    assert all(p.ndim > 0 for p in head.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torch_jit_trace_passes_its_own_check_and_fixes_neither_sizes_nor_values(head):
    z = rows(dtype=torch.float32)
    traced = torch.jit.trace(head, z)  # checked by a second trace, in which nothing requires a gradient
    for other in (rows(9, seed=1, dtype=torch.float32), 1e12 * z, torch.cat((z, torch.zeros_like(z)))):
        torch.testing.assert_close(traced(other), head(other))


def test_shared_units_with_other_modules_for_their_linear_layers():
    class Swapped(nn.Module):  # as torch.ao.quantization.quantize_dynamic makes them: float32 only, weight is a method
        def __init__(self, old):
            super().__init__()
            self.old = [old]

        def weight(self):
            raise AssertionError("not a tensor")

        def forward(self, x):
            assert x.dtype == torch.float32
            return self.old[0](x)

    for options in ({}, {"bias": False, "temperature": 0.5}):
        head = KernelClassifier(D, C, RadialSeries(4), shared=4, **options)
        z = rows(dtype=torch.float32)
        expected = head(z)
        head.readout, head.skip = Swapped(head.readout), Swapped(head.skip)
        torch.testing.assert_close(head(z), expected)
        assert head(z.double()).dtype == torch.float64
