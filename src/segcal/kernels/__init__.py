"""The hot loops: a torch reference, and fused versions that must agree with it."""
