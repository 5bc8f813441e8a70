"""Generated scenes: one description, from which both the picture and its captions are made."""

from diptych.data.generated.description import Group, Scene
from diptych.data.generated.scenes import Scenes, scenes

__all__ = ["Group", "Scene", "Scenes", "scenes"]
