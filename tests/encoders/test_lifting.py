"""The folder rope_jax/encoders is usable by itself: copied under another name, where rope_jax cannot be imported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import rope_jax
from rope_jax import encoders

PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np

dims = rj.Dims(width=16, num_heads=2, head_dim=8)
q, k = jax.random.normal(jax.random.key(0), (2, 5, 2, 8))
positions = rj.Positions(query=rj.positions.contiguous(5, offset=3), length=8)
encoder = rj.Compose(rj.RoPE(scaling=rj.DynamicNTK(original_length=4)), rj.ALiBi(), rj.Kerple())
rj.check_requirements(encoder, dims, max_position=7)
tables = encoder.tables(encoder.prepare(encoder.init(jax.random.key(1), dims), positions.length, dims), positions)
rotated = encoder.rotate(tables, q, k)
cos, sin = rj.rotary_tables(rj.rotary_frequencies(8, scaling=rj.YaRN(factor=4.0, original_length=64)), jnp.arange(5), exact=True)
drawn = rj.positions.pose(jax.random.key(2), jnp.array([4, 6]), 7, max_position=30)
numbers = [*rotated, encoder.bias(tables, *rotated, positions), rj.rotate(q, cos, sin), drawn, rj.alibi_bias(drawn, drawn, 4)]
print(json.dumps([np.asarray(x).tolist() for x in numbers]))
"""
# the import of rope_jax fails, also where it is installed
ALONE = """
import sys

class NoRopeJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rope_jax":
            raise ImportError("rope_jax is not here")

sys.meta_path.insert(0, NoRopeJax())
try:
    import rope_jax
except ImportError:
    import lifted as rj
else:
    sys.exit("rope_jax was imported")
"""


def run(program, folder):
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_encoders_alone_give_the_same_numbers(tmp_path):
    source = Path(encoders.__file__).parent
    shutil.copytree(source, tmp_path / "lifted", ignore=shutil.ignore_patterns("__pycache__"))
    lifted = run(f"{ALONE}\n{PROGRAM}\nassert 'rope_jax' not in sys.modules", tmp_path)
    whole = run(f"import rope_jax as rj\n{PROGRAM}", Path(rope_jax.__file__).parents[1])
    assert lifted == whole
    assert len(lifted) == 6
