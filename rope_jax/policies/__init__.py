"""Position policies. A new policy is one new file in this folder and one line in the list below."""

from rope_jax.policies.base import *
from rope_jax.policies.contiguous import *
from rope_jax.policies.grid import *
from rope_jax.policies.pose import *
from rope_jax.policies.random_float import *
from rope_jax.policies.random_offset import *
from rope_jax.policies.randomized import *
