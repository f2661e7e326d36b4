// The case browser: one case, one slice, all its maps, with one crosshair through all of them.
const ORDERS = {
  worst: ['worst after calibration first', (each) => -(each.nll[1] ?? 0)],
  least: ['helped least first', (each) => (each.nll[0] ?? 0) - (each.nll[1] ?? 0)],
  most: ['helped most first', (each) => (each.nll[1] ?? 0) - (each.nll[0] ?? 0)],
};
// Most local temperatures lie here; one scale for all cases.
const TEMPERATURES = [0.5, 3];
const REASONS = { worst: 'among the worst after calibration', 'least gain': 'helped least by calibration', 'most gain': 'helped most by calibration' };

function showCases(data, place, state) {
  const found = data.examples[place.task];
  if (!found || !found.cases.length || place.test_on) { show('cases'); return; }
  const ordered = [...found.cases].sort((a, b) => ORDERS[state.order][1](a) - ORDERS[state.order][1](b));
  const one = ordered.find((each) => each.case === state.case) || ordered[0];
  state.case = one.case;
  const middle = one.slices.reduce((best, each, k) => (each.index <= one.shape[one.axis ?? 0] / 2 ? k : best), 0);
  state.slice = state.slice === null || state.slice >= one.slices.length ? middle : state.slice;
  const again = () => showCases(data, place, state);
  const pick = (id) => { state.case = id; state.slice = null; again(); document.getElementById('case').focus(); };
  const at = ordered.indexOf(one);
  const step = (by) => () => pick(ordered[(at + by + ordered.length) % ordered.length].case);
  const maps = el('div', { class: 'maps', id: 'maps', tabindex: 0, role: 'group', 'aria-label': 'Maps of this case. Arrow keys move the crosshair.' });
  const readout = el('p', { class: 'small', id: 'voxel', 'aria-live': 'polite' }, 'Point at a map, or use the arrow keys in the maps, to read one voxel.');
  const text = el('output', {}, sliceText(one, state.slice));
  const slider = el('input', { type: 'range', id: 'slice', min: 0, max: one.slices.length - 1, value: state.slice, oninput: () => {
    state.slice = Number(slider.value);
    text.textContent = sliceText(one, state.slice);
    paintCase(data, place, found, one, state, maps, readout);
  } });
  show('cases',
    heading('cases', 'Look at cases, the worst first',
      `${ordered.length} of ${found.of} test cases, calibrated with ${label(data, place, found.pipeline)}. ${data.rule || ''}`),
    el('div', { class: 'casebar' },
      choice('Case', ordered.map((each) => [each.case, each.case]), one.case, pick, { id: 'case' }),
      el('span', { class: 'controls' }, el('button', { type: 'button', onclick: step(-1), 'aria-label': 'Previous case' }, '‹'), ' ', el('button', { type: 'button', onclick: step(1), 'aria-label': 'Next case', id: 'next-case' }, '›')),
      el('span', { class: 'controls' }, choice('Order', Object.entries(ORDERS).map(([key, [title]]) => [key, title]), state.order, (value) => { state.order = value; state.case = null; state.slice = null; again(); }, { id: 'case-order' })),
      one.slices.length > 1 ? el('label', {}, 'Slice ', slider, ' ', text) : null),
    el('p', { class: 'small', css: { 'margin-top': '.6rem' } }, name(one.case, 80), ': ', one.why.map((why) => REASONS[why] || why).join(', '), '. ', caseNumbers(data, one), one.slices.some((slice) => slice.prediction_after) ? '' : ' No voxel of the mask changed in what is shown.'),
    legend(place, one), maps, readout,
    one.step > 1 ? el('p', { class: 'small soft' }, `To keep this file small, every ${one.step === 2 ? 'second' : one.step === 3 ? 'third' : one.step + 'th'} voxel along each side is shown.`) : null);
  return paintCase(data, place, found, one, state, maps, readout);
}

function sliceText(one, k) {
  return one.axis === null ? '' : `${one.slices[k].index + 1} of ${one.shape[one.axis]}`;
}

function caseNumbers(data, one) {
  const parts = [['ece', 'calibration error', '\u00a0%'], ['nll', 'loss', ''], ['dice', 'Dice', '\u00a0%']].map(([key, title, unit]) => {
    const metric = data.metrics[key];
    if (!metric || !one[key] || one[key][0] === null) return null;
    const [before, after] = one[key].map((value) => metricText(metric, value));
    return before === after ? `${title} ${before}${unit}` : `${title} ${before} → ${after}${unit}`;
  });
  const text = parts.filter(Boolean).join('; ');
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function legend(place, one) {
  const classes = place.classes.map((text, k) => [text, classColour(k, place.background)]).filter(([, colour]) => colour !== null).slice(0, 40);
  const strip = el('div', { class: 'strip', role: 'img', 'aria-label': 'Confidence scale: ' + LEVEL_NAMES.join(', ') },
    LEVEL_COLOURS.map((colour, k) => el('span', { css: { background: rgb(colour), color: k > 3 ? '#000' : '#fff' } }, LEVEL_NAMES[k])));
  return el('div', { class: 'split' }, el('div', { class: 'legend' }, classes.map(([text, colour]) => el('span', {}, el('i', { css: { background: rgb(colour) } }), name(text, 28)))),
    el('div', {}, el('div', { class: 'small soft' }, 'Confidence, one scale for all cases, before and after'), strip));
}

function rangeOf(found, key) {
  const all = found.cases.flatMap((each) => each.slices.map((slice) => slice[key]).filter(Boolean));
  return all.length ? [Math.min(...all.map((map) => map.low)), Math.max(...all.map((map) => map.high))] : null;
}

const decoded = new WeakMap();

async function paintCase(data, place, found, one, state, node, readout) {
  const slice = one.slices[state.slice];
  if (!decoded.has(slice)) decoded.set(slice, decodeSlice(slice));
  const maps = await decoded.get(slice);
  if (state.case !== one.case || one.slices[state.slice] !== slice) return; // another one was picked meanwhile
  const context = { background: place.background, energy: rangeOf(found, 'energy'), temperature: TEMPERATURES, local: found.temperature };
  const { width, height } = maps.truth;
  const crosses = [];
  const tell = (x, y) => {
    state.voxel = [Math.min(Math.max(x, 0), width - 1), Math.min(Math.max(y, 0), height - 1)];
    const [i, j] = state.voxel;
    crosses.forEach((cross) => { cross.hidden = false; cross.style.left = (100 * (i + 0.5)) / width + '%'; cross.style.top = (100 * (j + 0.5)) / height + '%'; });
    readout.textContent = voxelText(place, maps, j * width + i);
  };
  node.replaceChildren(...views(maps, context).map((view) => {
    let canvas = paint(maps, view.paint);
    if (view.contours) canvas = drawContours(canvas, view.contours, maps.truth, Math.max(2, Math.ceil(480 / Math.max(width, height))));
    const cross = el('div', { class: 'cross', hidden: true });
    crosses.push(cross);
    const ends = { energy: context.energy, temperature: context.temperature }[view.key];
    const range = ends ? ` (${ends.map((value) => value.toFixed(1)).join(' to ')})` : '';
    const move = (event) => { const box = canvas.getBoundingClientRect(); tell(Math.floor(((event.clientX - box.left) / box.width) * width), Math.floor(((event.clientY - box.top) / box.height) * height)); };
    return el('figure', { 'data-view': view.key }, el('div', { class: 'map', onpointermove: move, onpointerdown: move }, fill(canvas, { role: 'img', 'aria-label': view.title }, []), cross),
      el('figcaption', {}, view.title, view.note || range ? el('span', {}, view.note || '', range) : null));
  }));
  node.onkeydown = (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const [x, y] = state.voxel || [Math.floor(width / 2), Math.floor(height / 2)];
    const far = event.shiftKey ? 10 : 1;
    tell(x + far * by[0], y + far * by[1]);
  };
  node.dataset.ready = `${one.case} ${slice.index}`;
}

function voxelText(place, maps, k) {
  const truth = byteAt(maps.truth, k);
  if (truth === VOID) return 'This voxel does not count: it is outside the field of view, or has no label.';
  const named = (number) => plainName(place.classes[number] ?? `class ${number}`);
  const predicted = byteAt(maps.prediction, k);
  const after = maps.prediction_after ? byteAt(maps.prediction_after, k) : predicted;
  const verdict = predicted === truth ? 'right' : `wrong, truly ${named(truth)}`;
  return `Predicted ${named(predicted)} (${verdict})${after === predicted ? '' : `, after calibration ${named(after)}`}. ` +
    `Confidence ${percent(valueAt(maps.before, k), 0)} before, ${percent(valueAt(maps.after, k), 0)} after.`;
}
