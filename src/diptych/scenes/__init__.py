"""Generated scenes: images with captions whose true content is known, for the demo and the tests."""

from diptych.scenes._describe import Group, Scene
from diptych.scenes._scenes import Scenes, make_scenes

__all__ = ["Group", "Scene", "Scenes", "make_scenes"]
