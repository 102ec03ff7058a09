"""The mini-Transformer, its attention and dropout."""
