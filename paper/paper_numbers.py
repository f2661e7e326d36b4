"""Numbers of the paper that our own are set beside: Tables 3, 4 and 7, and the flips of its Sec. 4.3.

Only the rows of its matched comparisons: NLL, ECE, BA-ECE, ACE, and Dice in percent, in this order.
"""

METRICS = ("nll", "ece", "ba_ece", "ace", "dice")
# The dataset of the paper that each of our tasks stands for.
COUNTERPART = {"roads": "RoadSeg", "cardiac": "BraTS", "camvid": "Cityscapes"}
Rows = dict[str, tuple[float, float, float, float, float]]

RESULTS: dict[str, Rows] = {
    "RoadSeg": {
        "identity(single)": (0.091, 0.017, 0.094, 0.119, 76.3),
        "identity(mean_probs)": (0.085, 0.015, 0.087, 0.105, 76.7),
        "identity(mean_logits)": (0.088, 0.016, 0.091, 0.117, 76.7),
        "ms(mean_logits)": (0.068, 0.010, 0.056, 0.053, 76.5),
        "dc(mean_logits)": (0.067, 0.008, 0.047, 0.040, 76.7),
        "ms_c(mean_logits)": (0.068, 0.010, 0.057, 0.055, 76.5),
        "lts(mean_logits)": (0.067, 0.004, 0.047, 0.024, 76.7),
        "lts_ti(mean_logits)": (0.066, 0.002, 0.040, 0.007, 76.7),
        "cdc(mean_probs)": (0.065, 0.006, 0.043, 0.013, 75.7),
        "cms_ap(mean_probs)": (0.067, 0.007, 0.046, 0.036, 76.7),
        "cms_op(mean_probs)": (0.067, 0.007, 0.046, 0.037, 76.7),
        "cdc(mean_logits)": (0.066, 0.006, 0.041, 0.012, 75.7),
        "cms_ap(mean_logits)": (0.067, 0.008, 0.047, 0.043, 76.7),
        "cms_op(mean_logits)": (0.067, 0.007, 0.047, 0.043, 76.7),
    },
    "BraTS": {
        "identity(single)": (0.524, 0.340, 0.049, 0.112, 75.2),
        "identity(mean_probs)": (0.522, 0.340, 0.041, 0.087, 76.0),
        "identity(mean_logits)": (0.523, 0.340, 0.046, 0.096, 76.9),
        "ms(mean_logits)": (0.008, 0.001, 0.043, 0.069, 68.4),
        "dc(mean_logits)": (0.008, 0.001, 0.040, 0.065, 67.6),
        "ms_c(mean_logits)": (0.007, 0.001, 0.033, 0.041, 70.2),
        "lts(mean_logits)": (0.018, 0.012, 0.134, 0.237, 76.9),
        "lts_ti(mean_logits)": (0.014, 0.008, 0.090, 0.216, 76.9),
        "cdc(mean_probs)": (0.008, 0.001, 0.034, 0.046, 72.0),
        "cms_ap(mean_probs)": (0.007, 0.001, 0.029, 0.044, 76.0),
        "cms_op(mean_probs)": (0.007, 0.001, 0.028, 0.065, 76.0),
        "cdc(mean_logits)": (0.008, 0.001, 0.035, 0.033, 74.0),
        "cms_ap(mean_logits)": (0.007, 0.001, 0.031, 0.041, 76.9),
        "cms_op(mean_logits)": (0.007, 0.001, 0.030, 0.055, 76.9),
    },
    "Cityscapes": {
        "identity(single)": (0.485, 0.063, 0.182, 0.125, 71.7),
        "identity(mean_probs)": (0.377, 0.044, 0.136, 0.079, 78.1),
        "identity(mean_logits)": (0.434, 0.058, 0.170, 0.122, 79.4),
        "ms(mean_logits)": (0.404, 0.045, 0.156, 0.072, 73.4),
        "dc(mean_logits)": (0.324, 0.035, 0.096, 0.040, 70.4),
        "ms_c(mean_logits)": (0.328, 0.034, 0.098, 0.046, 72.8),
        "lts(mean_logits)": (0.344, 0.016, 0.075, 0.039, 79.4),
        "lts_ti(mean_logits)": (0.342, 0.010, 0.075, 0.029, 79.4),
        "cdc(mean_probs)": (0.335, 0.032, 0.108, 0.052, 69.3),
        "cms_ap(mean_probs)": (0.314, 0.035, 0.086, 0.041, 78.1),
        "cms_op(mean_probs)": (0.326, 0.035, 0.071, 0.032, 78.1),
        "cdc(mean_logits)": (0.341, 0.035, 0.115, 0.067, 74.2),
        "cms_ap(mean_logits)": (0.327, 0.038, 0.091, 0.081, 79.4),
        "cms_op(mean_logits)": (0.339, 0.035, 0.079, 0.041, 79.4),
    },
}
# Table 7, Cityscapes.
SHIFTED: dict[str, Rows] = {
    "mild": {
        "ms(mean_logits)": (0.445, 0.048, 0.163, 0.088, 72.3),
        "dc(mean_logits)": (0.352, 0.037, 0.106, 0.071, 72.8),
        "ms_c(mean_logits)": (0.359, 0.037, 0.106, 0.070, 72.1),
        "lts(mean_logits)": (0.372, 0.040, 0.083, 0.074, 78.4),
        "lts_ti(mean_logits)": (0.355, 0.037, 0.077, 0.078, 78.4),
        "cdc(mean_probs)": (0.364, 0.035, 0.113, 0.073, 68.2),
        "cms_ap(mean_probs)": (0.341, 0.040, 0.091, 0.036, 77.2),
        "cms_op(mean_probs)": (0.355, 0.040, 0.075, 0.030, 77.2),
        "cdc(mean_logits)": (0.369, 0.037, 0.123, 0.078, 73.8),
        "cms_ap(mean_logits)": (0.354, 0.042, 0.099, 0.054, 78.4),
        "cms_op(mean_logits)": (0.368, 0.039, 0.086, 0.037, 78.4),
    },
    "strong": {
        "ms(mean_logits)": (0.949, 0.110, 0.220, 0.129, 64.4),
        "dc(mean_logits)": (0.757, 0.082, 0.160, 0.105, 63.6),
        "ms_c(mean_logits)": (0.764, 0.090, 0.166, 0.108, 63.6),
        "lts(mean_logits)": (0.696, 0.072, 0.131, 0.095, 70.2),
        "lts_ti(mean_logits)": (0.656, 0.063, 0.115, 0.090, 70.2),
        "cdc(mean_probs)": (0.730, 0.076, 0.156, 0.099, 57.7),
        "cms_ap(mean_probs)": (0.702, 0.070, 0.133, 0.061, 68.2),
        "cms_op(mean_probs)": (0.658, 0.065, 0.113, 0.038, 68.2),
        "cdc(mean_logits)": (0.773, 0.085, 0.175, 0.114, 65.1),
        "cms_ap(mean_logits)": (0.742, 0.080, 0.153, 0.118, 70.2),
        "cms_op(mean_logits)": (0.698, 0.073, 0.138, 0.084, 70.2),
    },
}
# Mean spread of the free energy of the pooled logits within a case.
OFFSETS = {"RoadSeg": 1.08, "Cityscapes": 2.54, "BraTS": 8.77}
# Flips of matrix scaling on mean logits: percent harmful, beneficial.
FLIPS = {"BraTS": (74.8, 18.6), "Cityscapes": (50.4, 29.5)}


def verdict(rows: Rows, first: str, second: str, metric: str) -> str:
    """Return what the paper's printed numbers say of the second pipeline: better, worse or the same."""
    place = METRICS.index(metric)
    gap = rows[second][place] - rows[first][place]
    if gap == 0:
        return "same"
    return "better" if (gap > 0) == (metric == "dice") else "worse"
