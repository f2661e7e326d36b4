"""Thin adapters to the frameworks that networks are trained and used in; each needs its framework."""
