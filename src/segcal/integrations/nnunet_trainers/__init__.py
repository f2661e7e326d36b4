"""The folder that ``nnUNet_extTrainer`` names."""
