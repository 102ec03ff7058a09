"""What evaluation measures. A new metric is one new file here and one line in the list below.

A task names the metrics of its examples in `Task.metrics`; `EvaluateConfig(metrics=(...,))` adds others.
"""

from rope_jax.tasks.metrics.base import *
from rope_jax.tasks.metrics.content_error import *
from rope_jax.tasks.metrics.end_error import *
from rope_jax.tasks.metrics.exact_match import *
from rope_jax.tasks.metrics.token_accuracy import *
