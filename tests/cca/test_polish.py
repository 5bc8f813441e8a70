"""The contrastive loss against torch's autograd, and the polish of AWCCA on pairs that are not Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerance import bound

from diptych import AWCCA
from diptych._checks import InputError
from diptych.cca import Moments, maps
from diptych.cca._polish import (
    EPOCHS,
    PATIENCE,
    Polish,
    carry_polish,
    choose_epochs,
    contrast,
    polish_for,
    polish_vectors,
    sample_pairs,
)
