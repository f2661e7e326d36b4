from segcal.report.figures.energy import energy_figure


def test_every_map_has_its_scale_beside_it_and_may_lack_a_picture(texts, values, picture, nasty):
    figure = energy_figure(
        {
            "roads": {"case": nasty, "free_energy": values, "image": picture},
            "heart": {"case": "b", "free_energy": values},
        }
    )
    assert len(figure.axes) == 6
    drawn = figure.axes[1].images[0]
    assert (drawn.norm.vmin, drawn.norm.vmax) == (values["low"], values["high"])
    assert texts(figure).count("free energy in nats") == 2
