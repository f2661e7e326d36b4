"""Fitting: one function for every calibrator, and one visible list of how each kind is fitted."""

from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import METHODS, fit

__all__ = ["METHODS", "Certificate", "FitConfig", "Fitted", "fit"]
