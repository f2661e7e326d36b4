// One dot a test case: does a good mask come with calibrated confidence?
function showScatter(data, place, state, again) {
  const { names, dice, ece } = place.cases;
  const pairs = [['before', place.baseline, 'circle', 'var(--before)'], ['after', state.after, 'square', 'var(--after)']].filter(([, title]) => title && dice[title] && ece[title]);
  const known = pairs.flatMap(([, title]) => ece[title].filter((value, k) => value !== null && dice[title][k] !== null));
  if (pairs.length < 2 || known.length < 2) { show('scatter'); return; }
  const ticks = ticksTo(Math.max(...known));
  const chart = axes({ width: isNarrow() ? 390 : 640, height: isNarrow() ? 320 : 400, label: 'Calibration error against Dice, one dot a test case', x: { range: [0, 1], ticks: [0, 0.2, 0.4, 0.6, 0.8, 1], format: (value) => percent(value, 0), title: 'Dice: overlap of mask and truth' }, y: { range: [0, ticks[ticks.length - 1]], ticks, format: points, title: 'calibration error' } });
  const readout = el('p', { class: 'small', 'aria-live': 'polite' }, 'Point at a dot to see which case it is.');
  names.forEach((id, k) => {
    const [first, second] = pairs.map(([, title]) => [dice[title][k], ece[title][k]]);
    if (first.includes(null) || second.includes(null)) return;
    chart.root.append(svg('line', { x1: chart.px(first[0]), y1: chart.py(first[1]), x2: chart.px(second[0]), y2: chart.py(second[1]), stroke: 'var(--line)' }));
  });
  for (const [stage, title, kind, colour] of pairs) {
    names.forEach((id, k) => {
      if (dice[title][k] === null || ece[title][k] === null) return;
      const dot = shape(kind, chart.px(dice[title][k]), chart.py(ece[title][k]), 4.5, colour);
      dot.addEventListener('pointerenter', () => readout.replaceChildren(name(id, 60), `, ${stage}: Dice ${percent(dice[title][k])}, calibration error ${percent(ece[title][k], 2)}.`));
      chart.root.append(dot);
    });
  }
  show('scatter', heading('scatter', 'Mask quality and calibration, case by case',
    'One pair of dots a test case. Low is calibrated, right is a good mask. A case far up is one where the confidence cannot be trusted, however good its mask.'),
  afterChoice(data, place, state, again), keys(), el('div', { css: { 'max-width': '46rem' } }, chart.root), readout,
  place.cases.of > names.length ? el('p', { class: 'small soft' }, `The first ${names.length} of ${place.cases.of} test cases are shown.`) : null);
}
