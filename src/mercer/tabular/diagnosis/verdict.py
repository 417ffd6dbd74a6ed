"""What the numbers of a diagnosis mean, in plain words, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..scoring import find_rare_class
from .problem import Problem

if TYPE_CHECKING:
    from .ranking import Reading

_CHANCE = 0.05  # p-value above which the labels are called noise
_MANY_ROWS = 2000  # from here on a weak signal should show
_LEVELS = ((0.85, "very well"), (0.6, "well"), (0.25, "in part"), (0.0, "weakly"))


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        learnable: ``very well``, ``well``, ``in part``, ``weakly`` or ``not shown``.
        headline: One sentence.
        reasons: Sentences that say why, in words that need no kernels.
        details: Sentences about the kernels, for those who know them.
        advice: What to do next, in sentences.
        commands: For the shell or Python, in the order of the advice.
    """

    learnable: str
    headline: str
    reasons: list[str]
    details: list[str]
    advice: list[str]
    commands: list[str]


def judge(
    problem: Problem, readings: Sequence[Reading], p_value: float, scores: Mapping[str, Any] | None, source: str
) -> Verdict:
    """The verdict on ranked readings; ``scores`` are those that ``fit`` would print, None without columns."""
    best, name = readings[0], problem.target.name
    labels = "values"
    if problem.classes:
        labels = "labels"

    # What limits every model of this table.
    limits = []
    if problem.conflicts:
        limits.append(
            f"{problem.conflicts:,} rows equal another row in every column but not in {name}: "
            "no model can get all of them right."
        )
    if p_value > _CHANCE or best.explained <= 0:
        return _say_noise(problem, best, p_value, labels, limits, source)
    if problem.copies > 0.05 * len(problem.y):
        limits.append(
            f"{problem.copies:,} rows are exact copies of another, so that held-out scores are too good: "
            "remove the copies if they are not meant."
        )
    if best.accuracy is not None and best.accuracy <= problem.guess + 0.01:
        limits.append(
            "Few answers, if any, will differ from the most frequent class: use the probabilities, or set a threshold "
            "(mercer predict --threshold)."
        )

    # The answer in a sentence, and why in words that need no kernels.
    level = next(word for bound, word in _LEVELS if best.explained >= bound)
    fitted, what = scores, "the table's columns"
    if best.source:  # an embedding, which fit does not read
        fitted, what = None, best.source
    headline = f"{name} can be learned {level} from {what}: {_say_score(problem, best, fitted)}."
    shuffled = f"Shuffled {labels} were never predicted as well: this is no accident."
    reasons = [*_compare_with_others(fitted), shuffled, *limits]

    # For those who know kernels: the best one, what fit makes of them, how far from noise, how fast to learn.
    details = [_compare_kernels(readings)]
    machines = sum(reading.share > 0 for reading in readings)
    if fitted is not None and machines:
        uses = "uses one of these machines"
        if machines > 1:
            uses = f"combines {machines} of these machines"
        measure = "accuracy"
        if best.accuracy is None:
            measure = "r2"
        reached = _percent(fitted[measure])
        alone = f"The best single one, chosen on the same rows, reaches {_say_reached(best)}."
        details.append(f"mercer fit {uses} and reaches {reached}. {alone}")
    details.append(
        f"For this kernel the {labels} are {1 / best.ratio:,.3g} times simpler than shuffled {labels}, "
        "which were never predicted as well on rows left out."
    )
    if best.steps is None:
        speed = "Gradient descent would need over 1,000 full steps to halve the loss: expect slow training."
    else:
        control = "over 1,000"
        if best.shuffled_steps is not None:
            control = f"{best.shuffled_steps:,}"
        steps = max(best.steps, 1)
        speed = f"Gradient descent would halve the loss in {steps:,} full steps; on shuffled labels it takes {control}."
    details.append(speed)
    return Verdict(level, headline, reasons, details, *_advise(problem, readings, source))


def _say_noise(problem: Problem, best: Reading, p_value: float, labels: str, limits: list[str], source: str) -> Verdict:
    """The verdict where the labels are not told from noise."""
    name = problem.target.name
    headline = f"No sign that {name} can be learned from this table."
    explained = _percent(max(best.explained, 0.0))
    reason = (
        f"The best of the candidates, {best.name}, explains {explained} of the {labels} on rows left out; "
        f"shuffled ones do as well with probability {p_value:.2f}."
    )
    advice = [
        "Look for columns that bear on the target, or embeddings of text and pictures; check that rows and labels "
        "belong together."
    ]
    commands = []
    if len(problem.y) < _MANY_ROWS:
        advice.append(f"With only {len(problem.y):,} rows a weak signal does not show: more rows may.")
    else:
        advice.append("If you expect a weak signal, read more rows.")
        commands.append(shlex.join(["mercer", "diagnose", source, "--target", name, "--rows", "4000"]))
    return Verdict("not shown", headline, [reason, *limits], [], advice, commands)


def _say_score(problem: Problem, best: Reading, fitted: Mapping[str, Any] | None) -> str:
    """How good the answers are on rows left out."""
    if best.accuracy is None:
        explained = best.explained
        if fitted is not None:
            explained = fitted["r2"]
        return f"{_percent(explained)} of its variation is predicted on rows left out"
    # Of a rare class: how many of its rows the ranking puts first.
    rare = None
    if fitted:
        rare = find_rare_class(fitted)
    if rare:
        name = problem.classes[rare.number]
        tenth = f"the tenth of left-out rows that is likeliest to be {name} holds {rare.in_first_tenth:.0%} of them"
        return f"{tenth} (10% by chance)"
    right = best.accuracy
    if fitted is not None:
        right = fitted["accuracy"]
    guess = _percent(problem.guess)
    # Where no more rows are right than by the most frequent class, the ranking is what can be learned.
    if right <= problem.guess and fitted is not None and fitted.get("auroc") is not None:
        ranking = f"rows left out are ranked with an AUROC of {fitted['auroc']:.2f} (0.5 is chance, 1 perfect)"
        return f"{ranking}, but no more of them are right than by the most frequent class alone, {guess}"
    return f"{_percent(right)} right on rows left out, where the most frequent class alone gives {guess}"


def _compare_with_others(fitted: Mapping[str, Any] | None) -> list[str]:
    """What others reach on the same rows: in R2, in accuracy, or in AUROC where accuracy says nothing."""
    if not fitted or not fitted.get("beside"):
        return []
    measure, name = "r2", "of the variation"
    if "accuracy" in fitted:
        measure, name = "accuracy", "right"
        no_gain = fitted["accuracy"] <= fitted["always_most_frequent"] and fitted.get("auroc") is not None
        if no_gain or find_rare_class(fitted):
            measure, name = "auroc", "AUROC, 0.5 is chance and 1 perfect"

    def write(score: float | None) -> str:
        if score is None:
            return "-"
        if measure == "auroc":
            return f"{score:.2f}"
        return _percent(score)

    listed = ", ".join(f"{who} {write(scores[measure])}" for who, scores in fitted["beside"].items())
    return [f"On the same rows ({name}): mercer fit {write(fitted[measure])}, {listed}."]


def _compare_kernels(readings: Sequence[Reading]) -> str:
    """The best representation, and which others are as good."""
    # A linear kernel that is as good, or right as often, is the simpler answer.
    best = readings[0]
    text = f"The best representation is {best.name}. {best.meaning}"
    if best.family != "linear":
        tied = next((reading for reading in readings if reading.tied and reading.family == "linear"), None)
        if tied is not None:
            return f"{text} But {tied.name} is as good within the noise: a plain linear model will do."
        plain = next((r for r in readings if r.family == "linear" and r.source == best.source), None)
        if plain is not None and (plain.accuracy or 0.0) >= (best.accuracy or math.inf):
            text += f" ({plain.name} is right as often, {_percent(plain.accuracy or 0.0)}, but less surely.)"
    as_good = [reading.name for reading in readings[1:] if reading.tied]
    if not as_good:
        return f"{text} No other of the {len(readings)} comes near."
    listed = ", ".join(as_good[:3])
    if len(as_good) > 3:
        listed += f" and {len(as_good) - 3} more"
    return f"{text} As good within the noise: {listed}."


def _advise(problem: Problem, readings: Sequence[Reading], source: str) -> tuple[list[str], list[str]]:
    """What to do next, in sentences, and the commands that do it."""
    best, name = readings[0], problem.target.name
    if not best.source:
        advice = ["Next: fit a model. It combines the machines that help, and prints how good it is."]
        if best.family == "laplacian" and not any(r.tied and r.family in ("gaussian", "matern") for r in readings):
            advice.append("Sharp edges column by column suit these labels: boosted trees may do well on all rows, too.")
        fit = shlex.join(["mercer", "fit", source, "--target", name, "-o", "model"])
        return advice, [fit, shlex.join(["mercer", "predict", "model", source, "-o", "predictions.csv"])]

    # The best is an embedding: a head on it.
    compared = ""
    from_columns = next((reading for reading in readings if not reading.source), None)
    if from_columns is not None and from_columns.tied:
        compared = " The columns alone are as good within the noise."
    elif from_columns is not None:
        compared = f" The columns alone reach {_say_reached(from_columns)}, so the embedding earns its cost."
    advice = [f"Put a head on {best.source}: a kernel classifier, or a linear one where that is tied.{compared}"]
    kind = "Regressor"
    if problem.classes:
        kind = "Classifier"
    head = f"mercer.layerwise.KernelNetwork{kind}(random_state=0)"
    if not source.endswith(".npz"):
        variable = "embedding"
        if best.source.isidentifier():
            variable = best.source
        return advice, [f"{head}.fit({variable}, y)"]
    code = f"import mercer, numpy; data = numpy.load({source!r}); y = data[{name!r}]; "
    code += f"x = data[{best.source!r}].reshape(len(y), -1); print({head}.fit(x, y).score(x, y))"
    return advice, [shlex.join(["python", "-c", code])]


def _say_reached(reading: Reading) -> str:
    """Its score on rows left out: accuracy, or of numbers R2."""
    if reading.accuracy is None:
        return _percent(reading.explained)
    return _percent(reading.accuracy)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
