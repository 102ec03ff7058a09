"""From rows to curves, tables and figures. No JAX."""
