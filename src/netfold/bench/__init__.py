"""Side-by-side measurements: engines that take turns in one run, and the machine they ran on."""
