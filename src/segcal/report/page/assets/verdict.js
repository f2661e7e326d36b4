const TONES = {
  better: ['▲', 'More honest than before'], worse: ['▼', 'Less honest than before'],
  mixed: ['◆', 'Better by some measures, worse by others'], same: ['●', 'No measurable difference'],
  measured: ['●', 'Measured, not calibrated'],
};

function showVerdict(data, place) {
  const found = place.verdict;
  const where = place.test_on
    ? ['Fitted on ', name(place.task), ', tested on ', name(place.test_on)] : ['Tested on ', name(place.task)];
  if (!found) {
    show('verdict', el('p', { class: 'eyebrow' }, where), el('h1', { id: 'h-verdict' }, 'Measured, but not compared'),
      el('p', {}, 'These results have no uncalibrated row to compare with, so there is no verdict. The table below has the numbers.'));
    return;
  }
  const [mark, tone] = TONES[found.tone];
  const list = (texts) => (texts.length === 1 ? el('p', {}, texts[0]) : el('ul', {}, texts.map((text) => el('li', {}, text))));
  const part = (title, content) => (content.length ? [el('dt', {}, title), el('dd', {}, list(content))] : null);
  show('verdict', el('p', { class: 'eyebrow' }, where),
    el('h1', { id: 'h-verdict' }, found.headline),
    el('p', { class: 'tone tone-' + found.tone }, el('span', { 'aria-hidden': 'true' }, mark + ' '), tone),
    el('div', { class: 'tiles' }, tiles(data, place)),
    el('dl', { class: 'findings' }, part('What was wrong', [found.before]), part('What was done', [found.done]),
      part('What it changed', found.changed), part('The mask', found.mask ? [found.mask] : []), part('What it cannot promise', found.limits)));
}

function tiles(data, place) {
  const rows = Object.fromEntries(place.rows.map((row) => [row.pipeline, row]));
  const before = rows[place.baseline];
  const after = rows[place.chosen];
  const tile = (value, text) => el('div', { class: 'card tile' }, el('div', { class: 'value' }, value), el('div', { class: 'label' }, text));
  const made = [];
  for (const key of ['ece', 'ece_boundary', 'dice']) {
    const metric = data.metrics[key];
    if (!metric || !before.metrics[key] || before.metrics[key].value === null) continue;
    const [first, second] = [before, after].map((row) => metricText(metric, row.metrics[key].value));
    const text = { ece: after === before ? 'calibration error' : 'calibration error, before → after', ece_boundary: after === before ? 'calibration error at edges' : 'calibration error at edges, before → after', dice: 'Dice, overlap of mask and truth' }[key];
    made.push(tile(first === second ? `${first} %` : `${first} → ${second} %`, text));
  }
  const rate = after.metrics.flip_rate ? after.metrics.flip_rate.value : null;
  if (after !== before && rate !== null) {
    made.push(tile(rate === 0 ? '0' : percent(rate, rate < 0.001 ? 3 : 2), rate === 0 ? `voxels of the mask changed${after.preserves ? ', by construction' : ''}` : 'of the mask changed'));
  }
  return made;
}
