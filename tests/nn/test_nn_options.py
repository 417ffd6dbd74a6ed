"""The options of the kernelised head: a learned scale, shared units, places, prototypes from the data."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mercer
from mercer.kernels import RBF, Matern, RadialSeries
from mercer.nn import KernelClassifier, sampled_cross_entropy
from tests import reference_jayasumana2021 as reference
from tests.nn.cases import C, D, randomised, rows


@pytest.mark.parametrize("basis", ["monomial", "gegenbauer"])
@pytest.mark.parametrize("prototypes", [1, 3])
def test_the_learned_scale_equals_the_literal_transcription(basis, prototypes):
    head = KernelClassifier(D, C, RadialSeries(6, basis=basis), prototypes=prototypes, linear=True).double()
    head = randomised(head)
    with torch.no_grad():
        head.weight.copy_(rows(C * prototypes, seed=1))
        head.start.fill_(0.2)
    z = (10 * rows()).requires_grad_()  # half as long as the radius
    scale, dim = head.start + 6 * head.gate, D + 1 if basis == "gegenbauer" else None
    logits, alpha = head(z), head.kernel.coefficients
    settings = {"prototypes": prototypes, "dim": dim}
    read = (head.center, head.linear, 8 * D**0.5)
    slow = reference.scaled_logits(
        z, head.weight, alpha.tolist(), scale.tolist(), *read, bias=head.bias.tolist(), **settings
    )
    torch.testing.assert_close(logits.detach(), slow)
    plain = reference.plain_scaled_logits(z, head.weight, alpha[2:], scale, *read, bias=head.bias, **settings)
    wanted, weights = [z, *head.parameters()], rows(len(z), C, seed=2)
    ours = torch.autograd.grad((logits * weights).sum(), wanted)
    expected = torch.autograd.grad((plain * weights).sum(), wanted)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("prototypes", "bias"), [(1, True), (1, False), (2, True)])
def test_blocks_of_a_large_head_give_the_same_logits_and_gradients(prototypes, bias):
    head = randomised(KernelClassifier(D, 300, prototypes=prototypes, bias=bias).double())
    z, weights = rows(250).requires_grad_(), rows(250, 300, seed=2)  # more cosines than one block has
    wanted, logits = [z, *head.parameters()], torch.cat([head(part) for part in z.split(50)])
    whole = torch.autograd.grad((logits * weights).sum(), wanted)
    again = head(z)
    torch.testing.assert_close(again, logits)
    torch.testing.assert_close(torch.autograd.grad((again * weights).sum(), wanted), whole)


def test_a_head_called_between_a_pass_and_its_backward_changes_no_gradient():
    heads = [randomised(KernelClassifier(D, C).double()) for _ in range(2)]
    z, weights = rows(9).requires_grad_(), rows(9, C, seed=2)

    def gradients(logits, head):
        return torch.autograd.grad((logits * weights).sum(), [z, *head.parameters()], retain_graph=True)

    alone = [gradients(head(z), head) for head in heads]
    first, second = (head(z) for head in heads)
    heads[0](rows(4))  # of another size
    torch.testing.assert_close(gradients(first, heads[0]), alone[0], rtol=0, atol=0)
    torch.testing.assert_close(gradients(second, heads[1]), alone[1], rtol=0, atol=0)
    torch.testing.assert_close(gradients(first, heads[0]), alone[0], rtol=0, atol=0)


def test_shared_units_and_places_equal_the_literal_transcription():
    head = randomised(KernelClassifier(D, C, RadialSeries(6), shared=4).double())
    with torch.no_grad():
        head.weight.copy_(rows(4, seed=1))
    z, places, mask = (
        rows(3),
        rows(12, seed=2).reshape(3, 4, D),
        torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]]),
    )
    alpha = head.kernel.coefficients.tolist()
    read = (head.norm.weight, head.norm.bias, head.readout.weight, head.skip.weight, head.bias)
    read = [parameter.detach() for parameter in read]
    centre = head.center.detach()
    alone = reference.kernel_mean((z - centre)[:, None], torch.ones(3, 1), head.weight, alpha)
    torch.testing.assert_close(head(z).detach(), reference.read_units(alone, z, *read))
    for counted in (None, mask.bool()):
        some = torch.ones(3, 4) if counted is None else counted
        means = reference.kernel_mean(places - centre, some, head.weight, alpha)
        torch.testing.assert_close(head.at_places(z, places, counted).detach(), reference.read_units(means, z, *read))
    own = randomised(KernelClassifier(D, C, RadialSeries(6), bias=False, temperature=0.5).double())
    means = reference.kernel_mean(places, mask, own.weight, own.kernel.coefficients.tolist())
    torch.testing.assert_close(own.at_places(z, places, mask.bool()).detach(), means / 0.5)
    changed = torch.where(mask.bool()[:, :, None], places, 100.0)
    torch.testing.assert_close(head.at_places(z, changed, mask.bool()), head.at_places(z, places, mask.bool()))


def test_frozen_embeddings_give_parameters_the_same_gradients():
    head, weights = randomised(KernelClassifier(D, C).double()), rows(9, C, seed=2)
    found = [torch.autograd.grad((head(z) * weights).sum(), list(head.parameters()))
             for z in (rows(9), rows(9).requires_grad_())]  # fmt: skip
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("bias", [True, False])
def test_shared_units_are_divided_by_a_temperature_and_the_bias_is_not(bias):
    head = randomised(KernelClassifier(D, C, RadialSeries(6), shared=4, temperature=0.5, bias=bias).double())
    alone = reference.kernel_mean(rows()[:, None], torch.ones(6, 1), head.weight, head.kernel.coefficients.tolist())
    read = (head.norm.weight, head.norm.bias, head.readout.weight, head.skip.weight, torch.zeros(C))
    slow = reference.read_units(alone, rows(), *(each.detach() for each in read)) / 0.5
    torch.testing.assert_close(head(rows()).detach(), slow + head.bias.detach() if bias else slow)


@pytest.mark.parametrize("options", [{}, {"prototypes": 2}, {"shared": 3}], ids=["default", "prototypes", "shared"])
def test_gradients_of_places_are_those_of_the_logits(options):
    """The logits are compared with the literal formula above; these are their derivatives by differences."""
    head = randomised(KernelClassifier(D, C, RadialSeries(4), **options).double())
    z, places = rows(2).requires_grad_(), rows(6, seed=2).reshape(2, 3, D).requires_grad_()
    mask = torch.tensor([[True, True, False], [False, True, True]])

    def logits(z, places, *parameters):  # changed in place, by the differences
        return head.at_places(z, places, mask)

    assert torch.autograd.gradcheck(logits, (z, places, *head.parameters()))


def test_the_scale_starts_where_a_matching_embedding_has_probability_nine_tenths():
    for c in (2, 10, 1000):
        for kernel in (RadialSeries(), RBF(2.0), Matern()):
            head = KernelClassifier(1001, c, kernel, bias=False, linear=False).double()
            with torch.no_grad():
                head.weight.copy_(torch.eye(c, 1001))
            assert head(1e6 * head.weight[:1]).softmax(1)[0, 0].item() == pytest.approx(0.9, abs=1e-6)


def test_the_default_head_contains_the_linear_one():
    linear, head = nn.Linear(D, C).double(), KernelClassifier(D, C).double()
    with torch.no_grad():
        head.start.zero_()
        head.linear.copy_(linear.weight)
        head.bias.copy_(linear.bias)
    short = 1e-6 * rows()
    torch.testing.assert_close(head(short), linear(short))
    shortened = (1 + rows().square().sum(1, keepdim=True) / (64 * D)) ** (-3 / 8)
    torch.testing.assert_close(head(rows()), linear(rows() * shortened))


def test_heads_with_a_learned_scale_have_a_linear_part_below_1000_classes():
    for options in ({"temperature": 1.0}, {"linear": False}, {"shared": 2}):
        assert KernelClassifier(D, C, **options).linear is None
    assert KernelClassifier(D, C, prototypes=2).linear is not None
    assert KernelClassifier(D, 999).linear is not None and KernelClassifier(D, 1000).linear is None
    fixed = KernelClassifier(D, C, RadialSeries(4), temperature=0.5, linear=True, bias=False).double()
    torch.nn.init.normal_(fixed.linear)
    alpha = fixed.kernel.coefficients.tolist()
    slow = reference.logits(rows(), fixed.weight, alpha, temperature=0.5) + rows() @ fixed.linear.T
    torch.testing.assert_close(fixed(rows()), slow)


@pytest.mark.parametrize("shared", [None, 4])
def test_embeddings_far_from_the_origin_are_read_from_their_center(shared):
    head, offset = randomised(KernelClassifier(D, C, shared=shared).double()), torch.full((D,), 50.0).double()
    torch.nn.init.zeros_(head.linear if shared is None else head.skip.weight)  # the linear part reads z itself
    before = head(rows())
    with torch.no_grad():
        head.center.add_(offset)
    torch.testing.assert_close(head(rows() + offset), before)
    head.init_from(rows(40) + offset, torch.arange(40) % C)
    torch.testing.assert_close(head.center, (rows(40) + offset).mean(0))


def test_prototypes_are_chosen_from_the_rows_of_a_class(tmp_path):
    for count, expected in ((50, 1), (350, 3), (2500, 10)):
        head = KernelClassifier(D, 2, prototypes="auto")
        assert head.prototypes == 1
        head.init_from(rows(2 * count), torch.arange(2 * count) % 2, generator=torch.Generator().manual_seed(0))
        assert head.prototypes == expected and head.weight.shape == (2 * expected, D)
    mercer.save(head, tmp_path)
    torch.testing.assert_close(mercer.load(tmp_path)(rows()), head(rows()))
    units = KernelClassifier(D, 2, shared=3).init_from(rows(40), torch.arange(40) % 2)
    torch.testing.assert_close(units.weight.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("prototypes", [1, 2])
def test_sampled_cross_entropy_is_exact_with_all_classes_and_unbiased_in_its_sum(prototypes):
    torch.manual_seed(0)
    c = 40
    head = KernelClassifier(D, c, prototypes=prototypes).double()
    z, labels = rows(6), torch.tensor([3, 3, 11, 0, 39, 7])
    exact = F.cross_entropy(head(z), labels)
    torch.testing.assert_close(sampled_cross_entropy(head, z, labels, samples=c), exact)
    torch.testing.assert_close(head.of_classes(z, labels), head(z)[:, labels])
    wanted = list(head.parameters())
    ours = torch.autograd.grad(sampled_cross_entropy(head, z, labels, samples=c), wanted)
    for found, expected in zip(ours, torch.autograd.grad(exact, wanted), strict=True):
        torch.testing.assert_close(found, expected)
    generator = torch.Generator().manual_seed(0)
    losses = [sampled_cross_entropy(head, z, labels, samples=10, generator=generator).detach() for _ in range(200)]
    # The denominator is estimated from 10 of 35 classes; the mean of 200 losses is within a few per cent of the loss.
    assert torch.stack(losses).mean().item() == pytest.approx(exact.item(), rel=0.05)
    with pytest.raises(TypeError, match=r"with weights for each class; got shared units"):
        sampled_cross_entropy(KernelClassifier(D, c, shared=3), z, labels)
