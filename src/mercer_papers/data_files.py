"""The names of each data set on disk, how to get it, and the checksum of the file of the papers' folder.

Without torch, so that ``mercer list`` can say in a moment which sets are on this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class MissingData(FileNotFoundError):  # noqa: N818 - it names the state of the data
    """A data set is not on this machine; the message says how to get it. Nothing is ever downloaded unasked."""


@dataclass(frozen=True)
class Source:
    """Where a set is found under the folder that ``MERCER_DATA`` names.

    Args:
        kept: files of the papers' folder with their SHA-256; empty where it has none.
        original: the same set as published: for each file, the names it goes by, the first present is taken.
        how: one sentence on how to get it.
        note: what a reader of a number on this set must know.
    """

    kept: tuple[tuple[str, str], ...] = ()
    original: tuple[tuple[str, ...], ...] = ()
    how: str = ""
    note: str = ""


def _idx(part: str, kind: str) -> tuple[str, ...]:
    names = (f"{part}-{kind}-ubyte", f"{part}-{kind.replace('-idx', '.idx')}-ubyte")
    return tuple(f"{folder}{name}{end}" for folder in ("", "mnist/") for name in names for end in ("", ".gz"))


def _either(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{where}{name}" for where in (f"{folder}/", "") for name in names)


SHIPPED = "It comes with scikit-learn; nothing has to be fetched."
_SPLIT = "No official split: a stratified fifth is held out, or one of ten folds."

SOURCES: dict[str, Source] = {
    "breast_cancer": Source(how=SHIPPED, note=_SPLIT + " Not the 615-row set of masoomi2020's authors."),
    "car": Source(
        kept=(("car.npz", "95dcbcba0ff4d31ae2a6dab751f39ef048d0c1cc0ac4a8a09aa4acae8c263bd8"),),
        original=(("car.data", "car/car.data"),),
        how="Put car.npz, or car.data of UCI's Car Evaluation, into the folder MERCER_DATA names.",
        note=_SPLIT + " The copy used by masoomi2020's authors leaks its label; this is UCI's.",
    ),
    "cifar10": Source(
        kept=(
            ("cifar10_train.npz", "a27aac913b695c88b5ba0604dc417dc4cbbc9e406e8979db0b7a08f41aa57fb2"),
            ("cifar10_test.npz", "405dad7bb64f7d723b6a9ff3112191778e2ff4f227ee365453ac254a7ba9c2ef"),
        ),
        original=tuple(
            (f"cifar-10-batches-bin/{name}.bin",) for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        ),
        how="Put cifar10_train.npz and cifar10_test.npz, or cifar-10-batches-bin (the binary version; the python "
        "version is pickled and never read), into the folder MERCER_DATA names.",
    ),
    "cifar100": Source(
        original=(("cifar-100-binary/train.bin",), ("cifar-100-binary/test.bin",)),
        how="Put cifar-100-binary (the binary version; the python version is pickled and never read) into the folder "
        "MERCER_DATA names.",
    ),
    "cifar100_subset": Source(
        kept=(("cifar100_subset.npz", "79e647891e340743cd574cb43c1d0379a6eb7082028f7ebddec2442c9332e685"),),
        how="Put cifar100_subset.npz into the folder MERCER_DATA names.",
        note="A subset: 20 training and 10 test pictures of each class.",
    ),
    "cmu_faces": Source(
        kept=(("cmu_faces.npz", "c58b27776f7f9e146c4943ce0360709defd9a4beeef2c2cebd6ee218888b5653"),),
        how="Put cmu_faces.npz into the folder MERCER_DATA names.",
        note="No official split: a stratified fifth is held out, or one of the ten folds of masoomi2020's authors.",
    ),
    "cov-tw": Source(
        original=tuple((f"cov_tw/{name}", f"COVID19Tweet/{name}") for name in ("train.tsv", "valid.tsv", "test.tsv")),
        how="Ask the organisers of WNUT-2020 Task 2 for train.tsv, valid.tsv and test.tsv, whose terms forbid "
        "passing them on, and put them into cov_tw in the folder MERCER_DATA names.",
    ),
    "digits": Source(how=SHIPPED, note=_SPLIT),
    "divorce": Source(
        kept=(("divorce.npz", "28d7832f6df8abffd2b183d13177234812596dcdb5c2f6ba7a0c4f44ab3bdf5c"),),
        original=(("divorce.csv", "divorce/divorce.csv"),),
        how="Put divorce.npz, or divorce.csv of UCI's Divorce Predictors, into the folder MERCER_DATA names.",
        note="No official split: a stratified fifth is held out, or one of the ten folds of masoomi2020's authors; "
        "20 rows repeat others.",
    ),
    "imdb": Source(
        kept=(("imdb.tsv.bz2", "105db0a90e51cb38b5a7a3453d2917d3eddd1b96a5e37a8f937ec4a09063853c"),),
        original=(("aclImdb/train",), ("aclImdb/test",)),
        how="Put imdb.tsv.bz2, or aclImdb of the Large Movie Review Dataset, into the folder MERCER_DATA names.",
    ),
    "mnist": Source(
        kept=(("mnist.npz", "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64"),),
        original=(
            _idx("train", "images-idx3"),
            _idx("train", "labels-idx1"),
            _idx("t10k", "images-idx3"),
            _idx("t10k", "labels-idx1"),
        ),
        how="Put mnist.npz, or MNIST's four idx files, into the folder MERCER_DATA names.",
    ),
    "mrpc": Source(
        kept=(("mrpc.tsv.gz", "dbdb80fda59dcd9675c937926b11eac5ce2f328cf7ef9b3e3312f977d955bbe5"),),
        original=(_either("MRPC", "msr_paraphrase_train.txt"), _either("MRPC", "msr_paraphrase_test.txt")),
        how="Put mrpc.tsv.gz, or msr_paraphrase_train.txt and ..._test.txt, into the folder MERCER_DATA names.",
        note="The MSR split (4,076 and 1,725 rows), not GLUE's train and dev.",
    ),
    "oxford_pets": Source(
        original=tuple(_either("oxford-iiit-pet", f"annotations/{part}.txt") for part in ("trainval", "test")),
        how="Put oxford-iiit-pet (its folders images and annotations) into the folder MERCER_DATA names.",
        note="The middle square of each picture at 224 x 224.",
    ),
    "rte": Source(
        kept=(("rte.tsv.gz", "abc3a7be4202eb926c9db922083c7b20af74e4cf660f566820c27ebb09bdfb98"),),
        original=(("RTE/train.tsv",), ("RTE/dev.tsv",)),
        how="Put rte.tsv.gz, or GLUE's folder RTE, into the folder MERCER_DATA names.",
        note="The test part is GLUE's dev part: GLUE hides the labels of its own test part.",
    ),
    "s-cov": Source(
        kept=(("sars_cov2_ct_128.npz", "55c4cd4eb4a53218f7d601ae195c8da2cade5e4ac21a595e3b963202bb026a41"),),
        how="Put sars_cov2_ct_128.npz into the folder MERCER_DATA names.",
        note="No official split, and no patient numbers: slices of one patient fall on both sides, scores are "
        "optimistic. Pictures were made grey, 128 x 128.",
    ),
    "sst2": Source(
        kept=(("sst2.tsv.gz", "0e9318c3c22d7f494652ef3a855444915ba74cc23bb2ffe35487958fcc9c7424"),),
        original=(("SST-2/train.tsv",), ("SST-2/dev.tsv",)),
        how="Put sst2.tsv.gz, or GLUE's folder SST-2, into the folder MERCER_DATA names.",
        note="The test part is GLUE's dev part, on which papers report.",
    ),
    "stanford_cars": Source(
        original=(("stanford_cars/train",), ("stanford_cars/test",)),
        how="Put stanford_cars (pictures in train/CLASS/*.jpg and test/CLASS/*.jpg) into the folder MERCER_DATA names.",
        note="The middle square of each picture at 224 x 224.",
    ),
    "usps": Source(
        kept=(("usps.npz", "4129af4a0c7df35a199cf979bdfaffd5c333a8f4628c0ed2d0174ca684b831e2"),),
        original=tuple(_either("usps", f"zip.{part}.gz", f"zip.{part}") for part in ("train", "test")),
        how="Put usps.npz, or zip.train.gz and zip.test.gz of the ESL book's site, into the folder MERCER_DATA names.",
        note="Grey values -1..1 of the source are mapped to [0, 1].",
    ),
    "wine": Source(how=SHIPPED, note=_SPLIT),
}

SPELLINGS = {"sars_cov2_ct": "s-cov", "s_cov": "s-cov", "cov_tw": "cov-tw"}  # other names of a set

RESNET20 = Source(
    kept=(("cifar10_resnet20_weights.npz", "7db2ed048755c815689e055b0e68e2d53db7f9f6e0f9b3bc9b6f837ab168774e"),),
    how="Put cifar10_resnet20_weights.npz into the folder MERCER_DATA names.",
)


def data_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """The folder given, or the one that ``MERCER_DATA`` names, or None."""
    if folder is None:
        folder = os.environ.get("MERCER_DATA")
    return Path(folder) if folder else None


def locate(source: Source, folder: Path | None) -> tuple[list[Path], bool] | None:
    """The set's files and whether they are those of the papers' folder; None where it is not complete."""
    if folder is None:
        return None
    files = [folder / name for name, _ in source.kept]
    if files and all(path.is_file() for path in files):
        return files, True
    published = [next((folder / n for n in names if (folder / n).exists()), None) for names in source.original]
    original = [path for path in published if path is not None]
    if original and len(original) == len(published):
        return original, False
    return None


def is_here(name: str, folder: Path | None) -> bool:
    """Whether a set's files are in the folder, or come with scikit-learn; False for a set that is not known."""
    source = SOURCES.get(SPELLINGS.get(name, name))
    return source is not None and (source.how == SHIPPED or locate(source, folder) is not None)


def canonical(name: str) -> str:
    """The name a set is listed under; ``sars_cov2_ct``, ``s_cov`` and ``cov_tw`` are other spellings."""
    from mercer import checks

    return checks.choice("data.load", "name", SPELLINGS.get(name, name), SOURCES)


def missing(name: str, source: Source, folder: Path | None) -> MissingData:
    """The error that says at once what is absent and what to do."""
    from mercer import checks

    got = "MERCER_DATA unset"
    if folder is not None:
        got = "none of them there" if folder.is_dir() else "a folder that does not exist"
    return MissingData(checks.sentence("data.load", f"the files of {name!r} must be on this machine", got, source.how))
