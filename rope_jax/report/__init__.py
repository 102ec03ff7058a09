"""From rows to statistics, tables and plots. No JAX."""
