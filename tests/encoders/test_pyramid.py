import numpy as np
from PIL import Image

from diptych.encoders import PyramidDescriptor


def test_the_descriptor_depends_on_colours_and_positions():
    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    left, right, other = (Image.new("RGB", (60, 60), "white") for _ in range(3))
    left.paste((200, 30, 30), (5, 20, 25, 40))
    right.paste((200, 30, 30), (35, 20, 55, 40))
    other.paste((30, 30, 200), (5, 20, 25, 40))
    a, b, c = PyramidDescriptor().encode([left, right, other])
    assert cosine(a, b) < 0.99
    assert cosine(a, c) < 0.99
    assert cosine(a, PyramidDescriptor().encode([left.resize((120, 120))])[0]) > 0.99
    assert PyramidDescriptor().encode([]).shape == (0, PyramidDescriptor.dimension)
