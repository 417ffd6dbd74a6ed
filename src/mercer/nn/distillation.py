"""Learning from a teacher's logits."""

from __future__ import annotations

from torch import Tensor

from .. import checks


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 20.0) -> Tensor:
    r"""Cross-entropy with the teacher's softened probabilities, averaged over rows.

    .. math:: -\frac{1}{n} \sum_i \sum_j \mathrm{softmax}(t_i / T)_j \, \log \mathrm{softmax}(s_i / T)_j

    (jayasumana2021, Section 6.4, after Hinton et al., 2015.) Gradients shrink as :math:`1 / T^2`: multiply by
    :math:`T^2` to add it to a loss on labels. No gradient flows to the teacher.

    Args:
        student: s, logits ``(n, c)``.
        teacher: t, logits ``(n, c)``.
        temperature: T.
    """
    where = "distillation_loss"
    checks.positive(where, "temperature", temperature)
    if student.shape != teacher.shape or student.ndim != 2:
        need = "student and teacher must have one shape (n, c)"
        raise ValueError(checks.sentence(where, need, f"{tuple(student.shape)} and {tuple(teacher.shape)}"))
    student, teacher = checks.floating(student), checks.floating(teacher).detach()
    target = (teacher / temperature).softmax(1)
    return -(target * (student / temperature).log_softmax(1)).sum(1).mean()
