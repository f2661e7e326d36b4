// The results: sorted by any column, filtered by what a calibrator promises.
const PROMISES = [
  ['mask', 'keeps the mask', (row) => row.preserves !== null],
  ['order', 'keeps the order of all classes', (row) => row.preserves === 'order'],
  ['shift', 'ignores a shift of all scores', (row) => row.translation_invariant],
];

function showTable(data, place, state) {
  const frame = el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Results, scrolls sideways' });
  const draw = () => frame.replaceChildren(resultsTable(data, place, state, draw));
  show('results',
    heading('results', 'All results', 'Every row is a way to combine and calibrate the networks, measured on the same test cases. ★ marks the best of the rows shown.'),
    el('div', { class: 'row controls' }, el('b', {}, 'Only what'),
      PROMISES.map(([key, text]) => check(text, state.only.has(key), (on) => { if (on) state.only.add(key); else state.only.delete(key); draw(); }, { 'data-promise': key }))),
    el('div', { class: 'row controls' }, check('show intervals', state.intervals, (on) => { state.intervals = on; draw(); }, { id: 'intervals' }),
      check('more measures', state.more, (on) => { state.more = on; draw(); }, { id: 'more' })),
    frame,
    el('p', { class: 'small soft', css: { 'margin-top': '.6rem' } },
      `Errors, Dice and changes in per cent. Intervals: ${Math.round(100 * data.level)} % over test cases and repeats; for “Error by level” least and largest over repeats. ` +
      'A measure that is not defined is shown as –.'),
    data.comparisons && data.comparisons.length && !place.test_on ? comparisons(data, place) : null);
  draw();
}

function comparisons(data, place) {
  const own = data.comparisons.filter((text) => text.startsWith(place.task + ','));
  return own.length ? el('details', {}, el('summary', {}, 'Matched comparisons, case by case'), el('ul', { class: 'small' }, own.map((text) => el('li', {}, text)))) : null;
}

function resultsTable(data, place, state, draw) {
  const metrics = Object.values(data.metrics).filter((metric) => metric.shown || state.more);
  const rows = place.rows.filter((row) => PROMISES.every(([key, , holds]) => !state.only.has(key) || holds(row)));
  const value = (row) => (state.sort === 'pipeline' ? label(data, place, row.pipeline) : row.metrics[state.sort] ? row.metrics[state.sort].value : null);
  const sorted = state.sort ? [...rows].sort((a, b) => compareValues(value(a), value(b), state.down)) : rows;
  const best = Object.fromEntries(metrics.map((metric) => [metric.name, bestText(metric, rows)]));
  const order = (key, better) => () => {
    state.down = state.sort === key ? !state.down : better === 'higher';
    state.sort = key;
    draw();
  };
  const sorting = (key) => (state.sort === key ? (state.down ? 'descending' : 'ascending') : 'none');
  const arrow = { lower: '↓', higher: '↑' };
  return table([
    el('th', { scope: 'col', 'aria-sort': sorting('pipeline') }, el('button', { type: 'button', onclick: order('pipeline'), 'data-sort': 'pipeline' }, 'Calibrator')),
    ...metrics.map((metric) => el('th', { scope: 'col', 'aria-sort': sorting(metric.name), title: metric.explained },
      el('button', { type: 'button', onclick: order(metric.name, metric.better), 'data-sort': metric.name }, metric.title),
      el('span', { class: 'sub' }, `${shortName(metric.name)} ${arrow[metric.better] || ''}`))),
    el('th', { scope: 'col', class: 'left', title: 'mask: keeps the mask. order: keeps the order of all classes. shift: ignores a shift of all scores.' }, 'Promises', el('span', { class: 'sub' }, 'what it keeps or ignores')),
  ], sorted.length ? sorted.map((row) => tableRow(data, place, row, metrics, best, state)) : [el('tr', {}, el('td', { colspan: metrics.length + 2 }, 'No row makes all these promises.'))]);
}

function shortName(key) {
  return { ece: 'ECE', ba_ece: 'BA-ECE', ace: 'ACE', nll: 'NLL', dice: 'DSC', flip_rate: 'flips' }[key] || key.replaceAll('_', ' ');
}

function compareValues(a, b, down) {
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  const order = typeof a === 'string' ? a.localeCompare(b) : a - b;
  return down ? -order : order;
}

// What the best number looks like once rounded: whatever looks the same is as good.
function bestText(metric, rows) {
  const values = rows.map((row) => row.metrics[metric.name]).filter((one) => one && one.value !== null).map((one) => one.value);
  if (!metric.better || values.length < 2) return null;
  return metricText(metric, metric.better === 'lower' ? Math.min(...values) : Math.max(...values));
}

function tableRow(data, place, row, metrics, best, state) {
  const chosen = row.pipeline === place.chosen;
  const cells = metrics.map((metric) => {
    const one = row.metrics[metric.name];
    if (!one || one.value === null) return el('td', {}, '–');
    const text = metricText(metric, one.value);
    const wins = text === best[metric.name] && !(metric.name === 'flip_rate');
    const interval = intervalText(metric, one);
    return el('td', { class: wins ? 'best' : null, title: interval ? `${text}, interval ${interval}` : null }, text, wins ? ' ★' : '',
      state.intervals && interval ? el('span', { class: 'sub' }, interval) : null);
  });
  const held = PROMISES.filter(([, , holds]) => holds(row)).map(([key]) => key);
  return el('tr', { class: chosen ? 'chosen' : null, 'data-row': row.pipeline },
    el('th', { scope: 'row' }, name(pipelineText(data, row), 60), chosen ? el('span', { class: 'tag' }, 'chosen') : null,
      row.pipeline === place.baseline ? el('span', { class: 'tag first' }, 'before') : null,
      row.converged ? null : el('span', { class: 'tag first', title: 'The fit stopped before its tolerance.' }, 'fit not finished'),
      el('span', { class: 'sub' }, el('code', {}, name(row.pipeline, 70)), ' · ', poolingText(data, row))),
    cells, el('td', { class: 'left' }, row.calibrator === 'identity' ? el('span', { class: 'soft' }, 'changes nothing') : held.length ? held.join(' · ') : el('span', { class: 'soft' }, 'none')));
}
