"""What the numbers of a diagnosis mean, in plain words, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .problem import Problem

if TYPE_CHECKING:
    from .ranking import Reading

_CHANCE = 0.05  # p-value above which the labels are called noise
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
    asked: Problem, readings: Sequence[Reading], p_value: float, scores: Mapping[str, Any] | None, source: str
) -> Verdict:
    """The verdict on ranked readings; ``scores`` are those that ``fit`` would print, None without columns."""
    best = readings[0]
    name = asked.target.name
    if p_value > _CHANCE or best.explained <= 0:
        headline = f"No sign that {name} can be learned from this table."
        return Verdict("not shown", headline, _noise(asked, best, p_value), [], *_advice_on_noise(asked, source))
    level = next(word for least, word in _LEVELS if best.explained >= least)
    what = best.source or "the table's columns"
    fitted = scores if not best.source else None
    headline = f"{name} can be learned {level} from {what}: {_score(asked, best, fitted)}."
    shuffled = f"Shuffled {_labels(asked)} were never predicted as well: this is no accident."
    reasons = [*_beside(fitted), shuffled, *_limits(asked, best)]
    details = [_suits(readings), *_averaged(readings, fitted), _against_noise(asked, best), *_speed(best)]
    return Verdict(level, headline, reasons, details, *_advice(asked, readings, source))


def _score(asked: Problem, best: Reading, fitted: Mapping[str, Any] | None) -> str:
    if best.accuracy is None:
        share = best.explained if fitted is None else fitted["r2"]
        return f"{_percent(share)} of its variation is predicted on rows left out"
    right = best.accuracy if fitted is None else fitted["accuracy"]
    # where no more rows are right than by the most frequent class, the ranking is what can be learned
    if right <= asked.guess and fitted is not None and fitted.get("auroc") is not None:
        ranking = f"rows left out are ranked with an AUROC of {fitted['auroc']:.2f} (0.5 is chance, 1 perfect)"
        return (
            f"{ranking}, but no more of them are right than by the most frequent class alone, {_percent(asked.guess)}"
        )
    alone = f"where the most frequent class alone gives {_percent(asked.guess)}"
    return f"{_percent(right)} right on rows left out, {alone}"


def _beside(fitted: Mapping[str, Any] | None) -> list[str]:
    """What others reach on the same rows: in R2, in accuracy, or in AUROC where accuracy says nothing."""
    others = (fitted or {}).get("beside")
    if not fitted or not others:
        return []
    measure, name = "r2", "of the variation"
    if "accuracy" in fitted:
        measure, name = "accuracy", "right"
        if fitted["accuracy"] <= fitted["always_most_frequent"] and fitted.get("auroc") is not None:
            measure, name = "auroc", "AUROC"

    def number(score: float | None) -> str:
        if score is None:
            return "-"
        return f"{score:.2f}" if measure == "auroc" else _percent(score)

    listed = ", ".join(f"{who} {number(found[measure])}" for who, found in others.items())
    return [f"On the same rows ({name}): mercer fit {number(fitted[measure])}, {listed}."]


def _averaged(readings: Sequence[Reading], fitted: Mapping[str, Any] | None) -> list[str]:
    """What ``fit`` makes of the machines."""
    count = sum(reading.share > 0 for reading in readings)
    if fitted is None or not count:
        return []
    machines = "uses one of these machines" if count == 1 else f"combines {count} of these machines"
    alone = f"The best single one, chosen on the same rows, reaches {_reached(readings[0])}."
    reached = fitted["r2"] if readings[0].accuracy is None else fitted["accuracy"]
    return [f"mercer fit {machines} and reaches {_percent(reached)}. {alone}"]


def _suits(readings: Sequence[Reading]) -> str:
    best = readings[0]
    text = f"The best representation is {best.name}. {best.meaning}"
    others = [reading.name for reading in readings[1:] if reading.tied]
    simple = next((r for r in readings if r.tied and r.family == "linear"), None)
    if simple is not None and simple is not best:
        return f"{text} But {simple.name} is as good within the noise: a plain linear model will do."
    plain = next((r for r in readings if r.family == "linear" and r.source == best.source), None)
    if plain is not None and plain is not best and _as_often(plain, best):
        text += f" ({plain.name} is right as often, {_percent(plain.accuracy or 0.0)}, but less surely.)"
    if not others:
        return f"{text} No other of the {len(readings)} comes near."
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"{text} As good within the noise: {shown}."


def _as_often(other: Reading, best: Reading) -> bool:
    return other.accuracy is not None and best.accuracy is not None and other.accuracy >= best.accuracy


def _against_noise(asked: Problem, best: Reading) -> str:
    return (
        f"For this kernel the {_labels(asked)} are {1 / best.ratio:,.3g} times simpler than shuffled {_labels(asked)}, "
        f"which were never predicted as well on rows left out."
    )


def _speed(best: Reading) -> list[str]:
    if best.steps is None:
        return ["Gradient descent would need over 1,000 full steps to halve the loss: expect slow training."]
    control = f"{best.shuffled_steps:,}" if best.shuffled_steps is not None else "over 1,000"
    steps = max(best.steps, 1)
    return [f"Gradient descent would halve the loss in {steps:,} full steps; on shuffled labels it takes {control}."]


def _limits(asked: Problem, best: Reading) -> list[str]:
    found = []
    if asked.conflicts:
        found.append(
            f"{asked.conflicts:,} rows equal another row in every column but not in {asked.target.name}: "
            "no model can get all of them right."
        )
    if asked.copies > 0.05 * len(asked.y):
        found.append(
            f"{asked.copies:,} rows are exact copies of another, so that held-out scores are too good: "
            "remove the copies if they are not meant."
        )
    if best.accuracy is not None and best.accuracy <= asked.guess + 0.01:
        found.append(
            "Few answers, if any, will differ from the most frequent class: use the probabilities, or set a threshold "
            "(mercer predict --threshold)."
        )
    return found


def _noise(asked: Problem, best: Reading, p_value: float) -> list[str]:
    found = [
        f"The best of the candidates, {best.name}, explains {_percent(max(best.explained, 0.0))} of the "
        f"{_labels(asked)} on rows left out; shuffled ones do as well with probability {p_value:.2f}."
    ]
    return found + _limits(asked, best)[:1] * bool(asked.conflicts)


def _advice_on_noise(asked: Problem, source: str) -> tuple[list[str], list[str]]:
    advice = [
        "Look for columns that bear on the target, or embeddings of text and pictures; check that rows and labels "
        "belong together.",
        f"With only {len(asked.y):,} rows a weak signal does not show: more rows may.",
    ]
    if len(asked.y) >= 2000:
        advice[1] = "If you expect a weak signal, read more rows."
    return advice, [f"mercer diagnose {_quoted(source)} --target {_quoted(asked.target.name)} --rows 4000"][
        : len(asked.y) >= 2000
    ]


def _advice(asked: Problem, readings: Sequence[Reading], source: str) -> tuple[list[str], list[str]]:
    best = readings[0]
    if best.source:
        from_columns = next((r for r in readings if not r.source), None)
        lead = ""
        if from_columns is not None:
            lead = f" The columns alone reach {_reached(from_columns)}, so the embedding earns its cost."
            lead = lead if not from_columns.tied else " The columns alone are as good within the noise."
        advice = [f"Put a head on {best.source}: a kernel classifier, or a linear one where that is tied.{lead}"]
        return advice, [_head(asked, best, source)]
    named = f"{_quoted(source)} --target {_quoted(asked.target.name)}"
    advice = ["Next: fit a model. It combines the machines that help, and prints how good it is."]
    if best.family == "laplacian" and not any(r.tied and r.family in ("gaussian", "matern") for r in readings):
        advice.append("Sharp edges column by column suit these labels: boosted trees may do well on all rows, too.")
    return advice, [f"mercer fit {named} -o model", f"mercer predict model {_quoted(source)} -o predictions.csv"]


def _head(asked: Problem, best: Reading, source: str) -> str:
    """A command that fits a head on the best embedding of an npz file; for other sources the Python."""
    head = (
        f"mercer.layerwise.{'KernelNetworkClassifier' if asked.classes else 'KernelNetworkRegressor'}(random_state=0)"
    )
    if not source.endswith(".npz"):
        return f"{head}.fit({best.source if best.source.isidentifier() else 'embedding'}, y)"
    code = f"import mercer, numpy; data = numpy.load({source!r}); y = data[{asked.target.name!r}]; "
    code += f"x = data[{best.source!r}].reshape(len(y), -1); print({head}.fit(x, y).score(x, y))"
    return f"python -c {_quoted(code)}"


def _labels(asked: Problem) -> str:
    return "labels" if asked.classes else "values"


def _reached(reading: Reading) -> str:
    return _percent(reading.explained if reading.accuracy is None else reading.accuracy)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
