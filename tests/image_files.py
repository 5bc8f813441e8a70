"""Images for the tests of encoders."""

import numpy as np
from PIL import Image


def make_images(rng, *sizes):
    """Make random images of the given (width, height)."""
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
