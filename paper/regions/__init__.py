"""Region models on real data: trained, measured, and through nnU-Net's own commands."""
