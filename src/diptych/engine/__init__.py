"""Engines that map and reduce in other processes, here or on a cluster."""

from diptych.engine.dask import DaskEngine

__all__ = ["DaskEngine"]
