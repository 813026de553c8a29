"""Engine metrics of every kind, normalised to one set of signals."""
