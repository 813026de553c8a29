"""Facts for and against each cause."""
