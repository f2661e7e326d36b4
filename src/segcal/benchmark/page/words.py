"""Plain words for what stands in tables: what a metric means, what a pooling and a promise are."""

# Metrics in the order of the table's columns, each with a short name, what it says, and whether it is shown at first.
METRIC_WORDS: dict[str, tuple[str, str, bool]] = {
    "ece": (
        "Calibration error",
        "How far confidence is from the share of right predictions, on average over all voxels (ECE). "
        "0 % would be perfect.",
        True,
    ),
    "ba_ece": (
        "Error by distance",
        "The same gap, weighted towards voxels near the edges of structures, where it matters most (BA-ECE).",
        True,
    ),
    "ace": (
        "Error by level",
        "The same gap, with every level of confidence counting the same, however few voxels it has (ACE).",
        True,
    ),
    "nll": (
        "Loss",
        "A strict score of the probabilities: confident mistakes cost most (negative log-likelihood, NLL). Lower is "
        "better; it has no upper end.",
        True,
    ),
    "dice": (
        "Dice",
        "How well the mask overlaps the truth; 100 % is a perfect mask. A calibrator that keeps the mask cannot "
        "change it.",
        True,
    ),
    "flip_rate": ("Mask changed", "Share of voxels whose predicted class the calibrator changed.", True),
    "ece_boundary": ("Error at edges", "Calibration error of voxels less than 3 voxels from an edge.", False),
    "ece_foreground": ("Error in structures", "Calibration error of voxels that truly belong to a structure.", False),
    "ece_wrong": ("Confidence when wrong", "How sure the model is where it is wrong; lower is better.", False),
    "cece": ("Error by class", "Calibration error of every class's own probability, averaged over classes.", False),
    "brier": ("Brier score", "Mean squared distance between probabilities and truth, 0 to 2; lower is better.", False),
    "accuracy": ("Voxels right", "Share of voxels whose predicted class is the true one.", False),
    "miou": ("Mean IoU", "Overlap of mask and truth, mean over classes, all voxels together.", False),
    "harmful_flips": ("Harmful changes", "Of the changed voxels, the share that was right and became wrong.", False),
    "beneficial_flips": ("Useful changes", "Of the changed voxels, the share that was wrong and became right.", False),
}
# Shown in per cent.
PERCENT = (
    "ece", "ba_ece", "ace", "dice", "flip_rate", "ece_boundary", "ece_foreground", "ece_wrong", "cece", "accuracy",
    "miou", "harmful_flips", "beneficial_flips",
)  # fmt: skip
POOLING_WORDS = {
    "single": "first network",
    "mean_probs": "mean probabilities",
    "mean_logits": "mean scores",
}
# What a calibrator is called outside of code.
CALIBRATOR_WORDS = {
    "identity": "No calibration",
    "ts": "Temperature scaling",
    "ets": "Ensemble temperature scaling",
    "vs": "Vector scaling",
    "vs_ti": "Vector scaling, offset-free",
    "ms": "Matrix scaling",
    "ms_c": "Matrix scaling, offset-free",
    "dc": "Dirichlet calibration",
    "cdc": "Class-conditional Dirichlet",
    "cms_ap": "Mask-keeping scaling",
    "cms_op": "Order-keeping scaling",
    "lts": "Local temperature scaling",
    "lts_ti": "Local temperature scaling, offset-free",
    "ibts": "Temperature by image",
    "pts": "Temperature by voxel",
    "iop": "Order-keeping network",
    "selective": "Selective scaling",
    "meta_cal": "Meta-Cal",
    "meta_cal_large_t": "Meta-Cal with a large temperature",
    "isotonic": "Isotonic regression",
    "histogram": "Histogram binning",
}


def calibrator_words(name: str) -> str:
    """Return what a calibrator is called; its own name if there is no other.

    >>> calibrator_words("ts")
    'Temperature scaling'
    """
    return CALIBRATOR_WORDS.get(name, name)
