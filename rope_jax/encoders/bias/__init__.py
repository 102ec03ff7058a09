"""Encoders that add to the attention logits."""
