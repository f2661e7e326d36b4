from paper.loss_study import tables
from paper.loss_study.plan import MAIN, Unit
from paper.loss_study.results import Results


def test_every_table_has_a_row_for_every_loss(rows):
    results = Results(rows)
    made = [
        tables.main_table(results, "roads"),
        tables.rank_table(results),
        tables.union_table(results),
        tables.share_table(results, "dice"),
        tables.post_hoc_table(results, "roads", "corrupted", "nll"),
    ]
    for table in made:
        assert [row.title for row in table.rows] == [tables.TITLES[variant] for variant in MAIN]
        assert all(cell.value is not None for row in table.rows for cell in row.cells)


def test_the_best_loss_is_bold(rows):
    text = tables.main_table(Results(rows), "tumour").to_markdown()
    line = next(line for line in text.splitlines() if line.startswith("| CE |"))
    assert line.count("**") == 2 * 5
    assert "2 seeds" in text


def test_ablations_have_all_settings(rows):
    results = Results(rows)
    assert len(tables.ablation_table(results).rows) == 4
    assert len(tables.sensitivity_table(results).rows) == 18
    assert len(tables.sigma_table(results).rows) == 3
    assert len(tables.backbone_table(results).rows) == 12


def test_the_advantage_over_svls_is_in_percent(made_up):
    rows = [made_up(Unit("roads", "svls_1", 0), level=5), made_up(Unit("roads", "nacl_gaussian_1", 0), level=0)]
    results = Results(rows)
    dice, ece = (cell.value for cell in tables.sigma_table(results).rows[0].cells)
    old, new = (results.mean(tables.Key("roads", name), "ece_foreground") for name in ("svls_1", "nacl_gaussian_1"))
    assert ece > 0
    assert dice > 0
    assert abs(ece - 100 * (old - new) / old) < 1e-9


def test_variants_are_compared_on_the_seeds_that_all_have(made_up):
    rows = [made_up(Unit("roads", "nacl", 0), level=0), made_up(Unit("roads", "nacl", 1), level=9)]
    results = Results([*rows, made_up(Unit("roads", "nacl_l2", 0), level=0)])
    plain, _, squared, softmax = tables.ablation_table(results).rows
    assert plain.cells == squared.cells
    assert softmax.cells[0].value is None
    assert "the 1 seed that all of these have" in tables.ablation_table(results).to_markdown()


def test_gains_are_against_ce_dice(rows):
    table = tables.gain_table(Results(rows), "roads", "clean", "nll")
    assert [row.title for row in table.rows] == [tables.TITLES[v] for v in MAIN if v != "ce_dice"]
    first, *_, last = table.rows
    assert first.cells[1].value < 0 < last.cells[1].value
    assert "Negative: the loss still helps" in table.to_markdown()


def test_what_is_missing_is_a_dash(made_up):
    results = Results([made_up(Unit("roads", "ce", 0))])
    assert "| NACL | — |" in tables.main_table(results, "roads").to_markdown()
    assert "| sigma 1 | — | — |" in tables.sigma_table(results).to_markdown()


def test_changes_of_nacl_are_paired_with_the_plain_one(made_up):
    rows = [made_up(Unit("roads", name, seed), level=i) for i, name in enumerate(tables.ABLATION) for seed in (0, 1)]
    gaussian, squared, softmax = tables.ablation_gain_table(Results(rows)).rows
    dice, ece = gaussian.cells
    assert abs(dice.value + 0.02) < 1e-9
    assert abs(ece.value - 0.02) < 1e-9
    assert ece.low <= ece.value <= ece.high
    assert squared.cells[1].value < softmax.cells[1].value
