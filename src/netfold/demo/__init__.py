"""A real training, once through an aggregating switch and once with gloo, side by side."""
