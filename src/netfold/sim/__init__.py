"""The simulated net: worker and switch engines under a virtual clock, with faults from a seed."""
