"""The study of training losses, alone and together with calibration after training."""
