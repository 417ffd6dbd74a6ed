"""Pictures of letters, drawn from fonts that come with matplotlib: a set of any size that nobody has to download."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from mercer import checks

LATIN, CYRILLIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "БГДЖЗИЛПФЦЧШЩЫЭЮЯ"  # Cyrillic: those that no Latin letter looks like
_FACES = ("Sans", "Sans-Bold", "Sans-Oblique", "Serif", "Serif-Bold", "SansMono")
_SIDE, _SIZE = 28, 20  # pixels of a picture and of its letter
_BEND, _SHIFT, _NOISE = 0.12, 0.1, 0.2  # deviations: of the linear map, of the shift (1 is half a picture), of a pixel


def letters(n: int, *, alphabet: str = LATIN, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw n letters in six fonts, each bent, shifted and noisy in its own way.

    Args:
        n: Number of pictures.
        alphabet: The classes, a letter each; ``CYRILLIC`` has 17 that a network of Latin letters has not met.
        seed: Decides letters, fonts, bends and noise.

    Returns:
        Pictures ``(n, 1, 28, 28)`` and the letters' places in the alphabet ``(n,)``.
    """
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    checks.integer("letters", "n", n, 1)
    # every letter in every font
    folder, glyphs = Path(matplotlib.get_data_path()) / "fonts" / "ttf", []
    for face in _FACES:
        font = ImageFont.truetype(str(folder / f"DejaVu{face}.ttf"), _SIZE)
        for letter in alphabet:
            image = Image.new("L", (_SIDE, _SIDE))
            ImageDraw.Draw(image).text((_SIDE // 2, _SIDE // 2), letter, 255, font, anchor="mm")
            pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
            glyphs.append(pixels.view(1, _SIDE, _SIDE) / 255)
    # pick some, bend and shift each, add noise
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(glyphs), (n,), generator=generator)
    bend = torch.eye(2) + _BEND * torch.randn(n, 2, 2, generator=generator)
    shift = _SHIFT * torch.randn(n, 2, 1, generator=generator)
    grid = F.affine_grid(torch.cat((bend, shift), 2), [n, 1, _SIDE, _SIDE], align_corners=False)
    x = F.grid_sample(torch.stack(glyphs)[which], grid, align_corners=False)
    return x + _NOISE * torch.randn(x.shape, generator=generator), which % len(alphabet)
