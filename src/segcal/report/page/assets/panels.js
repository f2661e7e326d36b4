// Pairs of numbers, before and after, one row a class or a band.
function pairRow(root, chart, y, before, after, title, sub) {
  const { px } = chart;
  root.append(svg('text', { class: 'strong', x: 0, y: y + (sub ? -2 : 4) }, plainName(title, isNarrow() ? 18 : 30)));
  if (sub) root.append(svg('text', { x: 0, y: y + 13 }, sub));
  if (before !== null && after !== null) root.append(svg('line', { x1: px(before), x2: px(after), y1: y, y2: y, stroke: 'var(--line)', 'stroke-width': 3 }));
  if (before !== null) root.append(shape('circle', px(before), y, 5.5, 'var(--before)'));
  if (after !== null) root.append(shape('square', px(after), y, 5.5, 'var(--after)'));
}

function pairChart(rows, title, largest, text) {
  const ticks = ticksTo(largest, isNarrow() ? 3 : 5);
  const height = 26 + 38 * rows.length + 44;
  const chart = axes({ width: isNarrow() ? 390 : 640, height, left: isNarrow() ? 135 : 210, top: 8, bottom: 44, label: title, x: { range: [0, ticks[ticks.length - 1]], ticks, format: text, title }, y: { range: [0, 1], ticks: [], format: String } });
  rows.forEach((row, k) => pairRow(chart.root, chart, 30 + 38 * k, row.before, row.after, row.title, row.sub));
  return chart.root;
}

function keys() {
  const mark = (kind, colour) => svg('svg', { viewBox: '0 0 14 14', css: { width: '14px', display: 'inline-block', 'vertical-align': '-2px', 'margin-right': '.3rem' } }, shape(kind, 7, 7, 5.5, colour));
  return el('div', { class: 'legend' }, el('span', {}, mark('circle', 'var(--before)'), 'before'), el('span', {}, mark('square', 'var(--after)'), 'after'));
}

function afterChoice(data, place, state, again) {
  const options = place.rows.filter((row) => row.pipeline !== place.baseline).map((row) => [row.pipeline, label(data, place, row.pipeline)]);
  if (options.length < 2) return null;
  return el('div', { class: 'row controls' }, choice('After', options, state.after, (value) => { state.after = value; again(); }));
}

const points = (value) => `${+(100 * value).toFixed(2)} %`;

function showBands(data, place, state, again) {
  const before = place.bands[place.baseline];
  const after = place.bands[state.after];
  if (!before || !after || !before.length) { show('bands'); return; }
  const edges = before.map((band) => band.from);
  const gap = (band) => (band.confidence === null ? null : Math.abs(band.confidence - band.accuracy));
  const total = before.reduce((sum, band) => sum + band.voxels, 0);
  const rows = before.map((band, k) => ({ title: bandText(edges, k), sub: `${percent(band.voxels / total, 0)} of the voxels`, before: gap(band), after: gap(after[k]) }));
  const numbers = table(['Distance from an edge', 'right', 'confidence before', 'confidence after', 'mask changes'],
    before.map((band, k) => [bandText(edges, k), percent(after[k].accuracy), percent(band.confidence), percent(after[k].confidence), count(after[k].flips)]), { class: 'small' });
  show('bands', heading('bands', 'Near the edges of structures',
    'Most mistakes are made near edges, and there confidence matters most. The dots show how far confidence is from accuracy, by distance from the nearest edge in the truth. Further left is better.'),
  afterChoice(data, place, state, again), el('div', { class: 'split' }, el('div', {}, keys(), pairChart(rows, 'gap between confidence and accuracy', Math.max(...rows.flatMap((row) => [row.before || 0, row.after || 0])), points)), el('div', { class: 'scroll' }, numbers)));
}

function showClasses(data, place, state, again) {
  const before = place.per_class[place.baseline];
  const after = place.per_class[state.after];
  if (!before || !after || before[0].error === undefined) { show('classes'); return; }
  const total = before.reduce((sum, row) => sum + row.voxels, 0);
  const there = before.map((row, k) => k).filter((k) => before[k].voxels > 0).sort((a, b) => before[b].voxels - before[a].voxels).slice(0, 40);
  const rows = there.map((k) => ({ title: place.classes[k], sub: `${percent(before[k].voxels / total, before[k].voxels / total < 0.01 ? 2 : 0)} of the voxels`, before: before[k].error, after: after[k].error }));
  const numbers = table(['Class', 'Dice', 'truly there', 'claimed before', 'claimed after'],
    there.map((k) => [name(place.classes[k], 40), percent(after[k].dice), percent(before[k].frequency, 2), percent(before[k].mean_probability, 2), percent(after[k].mean_probability, 2)]), { class: 'small' });
  show('classes', heading('classes', 'Class by class',
    'How far the probability of each class is from how often the class is there, over all voxels. “Claimed” is the mean probability that the model gives to the class. A rare class has small numbers: compare before and after.'),
  afterChoice(data, place, state, again), el('div', { class: 'split' }, el('div', {}, keys(), pairChart(rows, 'calibration error of the class', Math.max(...rows.flatMap((row) => [row.before, row.after])), points)), el('div', { class: 'scroll' }, numbers)));
}
