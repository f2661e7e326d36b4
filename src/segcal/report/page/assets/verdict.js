const EFFECTS = { better: '▲ improved', worse: '▼ worse', same: '● no measurable difference' };

function showVerdict(data, place) {
  const found = place.verdict;
  const where = place.test_on
    ? ['Fitted on ', name(place.task), ', tested on ', name(place.test_on)] : ['Tested on ', name(place.task)];
  if (!found) {
    show('verdict', el('p', { class: 'eyebrow' }, where), el('h1', { id: 'h-verdict' }, 'Measured, but not compared'),
      el('p', {}, 'A verdict needs a row before calibration and the metric ace, and one of them was not measured. The table below has the numbers.'));
    return;
  }
  const list = (texts) => (texts.length === 1 ? el('p', {}, texts[0]) : el('ul', {}, texts.map((text) => el('li', {}, text))));
  const part = (title, content) => (content.length ? [el('dt', {}, title), el('dd', {}, list(content))] : null);
  show('verdict', el('p', { class: 'eyebrow' }, where),
    el('h1', { id: 'h-verdict' }, found.headline),
    facts(modelFacts(data, place)),
    el('div', { class: 'tiles' }, tiles(data, place)),
    el('dl', { class: 'findings' }, part('What was wrong', [found.before]), part('What was done', [found.done]),
      part('What it changed', found.changed), part('The mask', found.mask ? [found.mask] : []), part('What it cannot promise', found.limits)));
}

// Which predictions, which calibrator, which cases.
function modelFacts(data, place) {
  const row = place.rows.find((each) => each.pipeline === place.chosen);
  const division = place.division;
  return [['Model', `${data.kind === 'benchmark' ? `ensemble of ${plainName(place.task)}, ` : ''}${poolingText(data, row)} of ${place.classes.length} classes`],
    ['Calibrator', row.calibrator === 'identity' ? 'none' : `${pipelineText(data, row)}, ${row.parameters === 1 ? '1 parameter' : `${count(row.parameters)} parameters`}`],
    ['Data', `${division.cal} calibration, ${division.val} validation and ${division.test} test cases`]];
}

// The measures on which the headline rests, each with its own effect; then overlap and mask.
function tiles(data, place) {
  const rows = Object.fromEntries(place.rows.map((row) => [row.pipeline, row]));
  const before = rows[place.baseline];
  const after = rows[place.chosen];
  const tile = (value, text, effect) => el('div', { class: 'card tile' }, el('div', { class: 'value' }, value), el('div', { class: 'label' }, text),
    effect ? el('div', { class: 'label tone tone-' + effect }, EFFECTS[effect]) : null);
  const made = [];
  for (const [key, text] of [['ece', 'calibration error (ECE)'], ['ba_ece', 'the same near edges (BA-ECE)'], ['nll', 'loss (NLL)'], ['dice', 'Dice, overlap of mask and truth']]) {
    const metric = data.metrics[key];
    if (!metric || !before.metrics[key] || before.metrics[key].value === null) continue;
    const [first, second] = [before, after].map((row) => metricText(metric, row.metrics[key].value));
    const unit = metric.percent ? ' %' : '';
    made.push(tile(first === second ? first + unit : `${first} → ${second}${unit}`, text, (place.verdict.effects || {})[key]));
  }
  const rate = after.metrics.flip_rate ? after.metrics.flip_rate.value : null;
  if (after !== before && rate !== null) {
    made.push(tile(rate === 0 ? '0' : percent(rate, rate < 0.001 ? 3 : 2), rate === 0 ? `voxels of the mask changed${after.preserves ? ', by construction' : ''}` : 'of the mask changed'));
  }
  return made;
}
