"""Generated scenes: one description, from which both the picture and its captions are made."""

from diptych.scenes._describe import Group, Scene
from diptych.scenes._scenes import Scenes, make_scenes

__all__ = ["Group", "Scene", "Scenes", "make_scenes"]
