"""The embedded tasks, their small trained ensembles, and the story of `segcal demo`."""
