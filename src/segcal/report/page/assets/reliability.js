// Confidence against accuracy, several pipelines on one pair of axes that never change.
const WHERE_ALL = 'all';
// A group of fewer voxels is a small dot, without a bar and off the line: it says little.
const FEW_VOXELS = 20;

function whereOptions(place) {
  const curves = place.curves[place.chosen || place.rows[0].pipeline];
  const options = [[WHERE_ALL, 'All voxels']];
  if (curves.foreground && place.background) options.push(['foreground', 'Voxels that truly belong to a structure']);
  const edges = (place.bands[place.chosen || place.rows[0].pipeline] || []).map((band) => band.from);
  (curves.bands || []).forEach((_, k) => options.push([`bands ${k}`, `Distance from an edge: ${bandText(edges, k)}`]));
  (curves.classes || []).forEach((_, k) => options.push([`classes ${k}`, `Class: ${place.classes[place.shown_classes[k]]}`]));
  return options;
}

function curveAt(place, title, where) {
  const [key, number] = where.split(' ');
  const found = place.curves[title][key];
  return number === undefined ? found : found && found[Number(number)];
}

function showReliability(data, place, state) {
  if (!Object.keys(place.curves).length) { show('reliability'); return; }
  const options = whereOptions(place);
  if (!options.some(([key]) => key === state.where)) state.where = WHERE_ALL;
  const readout = el('div', { class: 'card readout small', 'aria-live': 'polite' });
  const frame = el('div', {});
  const draw = () => frame.replaceChildren(reliabilityChart(data, place, state, readout));
  const first = (row) => [place.baseline, place.chosen].indexOf(row.pipeline);
  const rows = [...place.rows].sort((a, b) => (first(a) < 0 ? 9 : first(a)) - (first(b) < 0 ? 9 : first(b)));
  const toggles = rows.map((row) => {
    const swatch = el('span', { class: 'swatch' });
    const paint = () => {
      const k = state.picked.indexOf(row.pipeline);
      swatch.hidden = k < 0;
      swatch.style.borderTopColor = LINES[Math.max(k, 0) % LINES.length];
      swatch.style.borderTopStyle = DASHES[Math.max(k, 0) % DASHES.length] ? 'dashed' : 'solid';
    };
    const box = check([swatch, ' ', name(label(data, place, row.pipeline), 80)], state.picked.includes(row.pipeline), (on) => {
      state.picked = on ? [...state.picked, row.pipeline] : state.picked.filter((each) => each !== row.pipeline);
      repaint.forEach((each) => each());
      draw();
    }, { 'data-pipeline': row.pipeline });
    repaint.push(paint);
    return box;
  });
  show('reliability',
    heading('reliability', 'Is the confidence calibrated?',
      'Every dot is a group of voxels with similar confidence. On the dashed line they are right as often as the model says. ' +
      'Below it the model is overconfident, above it underconfident.'),
    el('div', { class: 'split' },
      el('div', {}, el('div', { class: 'row controls' }, choice('Show', options, state.where, (value) => { state.where = value; draw(); }, { id: 'where' })), frame),
      el('div', {}, readout, el('fieldset', { css: { 'margin-top': '1rem' } }, el('legend', {}, 'Compare'), el('div', { class: 'checks small' }, toggles)),
        el('p', { class: 'small soft' }, hasIntervals(place, state) ? `Upright bars are ${Math.round(100 * data.level)} % intervals over cases. ` : '', `Small dots have fewer than ${FEW_VOXELS} voxels. The strip below counts voxels on a logarithmic scale.`))));
  repaint.forEach((each) => each());
  draw();
}

const repaint = [];

function hasIntervals(place, state) {
  return state.picked.some((title) => place.curves[title] && place.curves[title].all.low.some((value) => value !== null));
}

function reliabilityChart(data, place, state, readout) {
  const [width, height, strip] = isNarrow() ? [390, 330, 92] : [600, 470, 92];
  const whole = (value) => Math.round(100 * value) + ' %';
  const ticks = [0, 0.2, 0.4, 0.6, 0.8, 1];
  const wide = state.where.startsWith('classes');
  const made = axes({
    width, height, role: 'group', label: 'Reliability diagram. Use the left and right arrow keys to go from bin to bin.',
    x: { range: [0, 1], ticks, format: whole }, y: { range: [0, 1], ticks, format: whole, title: wide ? 'how often it is this class' : 'how often it is right' },
  });
  const { root, px, py } = made;
  root.setAttribute('viewBox', `0 0 ${width} ${height + strip}`);
  root.append(svg('line', { class: 'ideal', x1: px(0), y1: py(0), x2: px(1), y2: py(1) }));
  root.append(svg('text', { x: px(0.03), y: py(0.955) }, 'underconfident'));
  root.append(svg('text', { x: px(0.97), y: py(0.03), 'text-anchor': 'end' }, 'overconfident'));
  const curves = state.picked.filter((title) => place.curves[title]).map((title, k) => ({ title, k, curve: curveAt(place, title, state.where) })).filter((each) => each.curve);
  const bins = curves.length ? curves[0].curve.count.length : 15;
  countStrip(root, curves, px, height, strip, bins, wide);
  for (const { k, curve } of curves) {
    const colour = LINES[k % LINES.length];
    const points = curve.confidence.map((c, b) => (c === null || curve.count[b] < FEW_VOXELS ? null : [px(c), py(curve.accuracy[b])])).filter(Boolean);
    root.append(svg('polyline', { points: points.map((p) => p.join(',')).join(' '), fill: 'none', stroke: colour, 'stroke-width': 2, 'stroke-dasharray': DASHES[k % DASHES.length] || null }));
    curve.confidence.forEach((c, b) => {
      if (c === null) return;
      const few = curve.count[b] < FEW_VOXELS;
      if (curve.low[b] !== null && !few) root.append(svg('line', { x1: px(c), x2: px(c), y1: py(curve.low[b]), y2: py(curve.high[b]), stroke: colour, 'stroke-width': 1.5 }));
      root.append(shape(SHAPES[k % SHAPES.length], px(c), py(curve.accuracy[b]), few ? 2.2 : 4.2, colour));
    });
  }
  hitAreas(data, place, root, curves, px, py(1), height + strip - 34, bins, readout, wide);
  return root;
}

function countStrip(root, curves, px, top, strip, bins, wide) {
  const base = top + strip - 40;
  const room = strip - 52;
  const most = Math.max(1, ...curves.flatMap(({ curve }) => curve.count));
  const reach = Math.max(1, Math.ceil(Math.log10(most)));
  root.append(svg('line', { class: 'axis', x1: px(0), x2: px(1), y1: base, y2: base }));
  root.append(svg('text', { x: px(0) - 8, y: base - room + 8, 'text-anchor': 'end' }, compact(10 ** reach)));
  root.append(svg('text', { x: px(0) - 8, y: base + 3, 'text-anchor': 'end' }, '1'));
  root.append(svg('text', { class: 'title', x: px(0.5), y: top + strip - 8, 'text-anchor': 'middle' }, wide ? 'probability that the model gives to this class · voxels in each group' : 'confidence of the model · voxels in each group'));
  const slot = (px(1) - px(0)) / bins;
  for (const { k, curve } of curves) {
    const each = (slot - 6) / curves.length;
    const place = curves.findIndex((one) => one.k === k);
    curve.count.forEach((n, b) => {
      if (n < 1) return;
      const tall = Math.max(1.5, (room * Math.log10(Math.max(n, 1.2))) / reach);
      root.append(svg('rect', { x: px(0) + b * slot + 3 + place * each, y: base - tall, width: Math.max(each - 1, 1), height: tall, fill: LINES[k % LINES.length] }));
    });
  }
}

function hitAreas(data, place, root, curves, px, top, bottom, bins, readout, wide) {
  const slot = (px(1) - px(0)) / bins;
  const hint = el('p', { class: 'soft' }, 'Point at a column of the diagram, or use the arrow keys in it, to read its numbers.');
  readout.replaceChildren(hint);
  const tell = (b, area) => {
    root.querySelectorAll('.hit.on').forEach((each) => each.classList.remove('on'));
    area.classList.add('on');
    readout.replaceChildren(el('p', {}, el('b', {}, `${wide ? 'Probability' : 'Confidence'} ${percent(b / bins, 0)} to ${percent((b + 1) / bins, 0)}`)),
      ...curves.map(({ title, curve, k }) => el('p', {}, el('span', { class: 'swatch', css: { 'border-top-color': LINES[k % LINES.length] } }), ' ', name(label(data, place, title), 60), ': ', binText(curve, b, wide))));
  };
  for (let b = 0; b < bins; b += 1) {
    const area = svg('rect', { class: 'hit', x: px(0) + b * slot, y: top, width: slot, height: bottom - top, tabindex: b === bins - 1 ? 0 : -1, role: 'button', 'aria-label': `Bin ${b + 1} of ${bins}`, 'data-bin': b });
    area.addEventListener('pointerenter', () => tell(b, area));
    area.addEventListener('focus', () => tell(b, area));
    area.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const next = step && root.querySelector(`[data-bin="${b + step}"]`);
      if (next) { event.preventDefault(); next.focus(); }
    });
    root.append(area);
  }
}

function binText(curve, b, wide) {
  if (!curve.count[b]) return 'no voxels.';
  const gap = 100 * (curve.confidence[b] - curve.accuracy[b]);
  const interval = curve.low[b] === null ? '' : ` [${percent(curve.low[b])} to ${percent(curve.high[b])}]`;
  const word = Math.abs(gap) < 0.05 ? 'calibrated' : `${gap > 0 ? 'overconfident' : 'underconfident'} by ${Math.abs(gap).toFixed(1)} points`;
  return `${count(curve.count[b])} voxels, says ${percent(curve.confidence[b])}, ${wide ? 'is it in' : 'right in'} ${percent(curve.accuracy[b])}${interval}: ${word}.`;
}
