// Where the numbers come from, figures of the studies, and words.
function facts(pairs) {
  return el('dl', { class: 'facts' }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== '').map(([key, value]) => [el('dt', {}, key), el('dd', {}, value)]));
}

const lossText = (value) => (typeof value === 'number' ? value.toFixed(4) : null);

function showProvenance(data, place) {
  const found = data.provenance;
  const own = (found.calibrators || {})[place.task];
  const division = place.division;
  const prints = Object.entries(found.fingerprints || {}).filter(([key]) => key.startsWith(place.task + ','));
  const fit = own && own.certificate;
  show('provenance', heading('provenance', 'Where these numbers come from'),
    facts([
      ['Cases', `${division.cal} for fitting, ${division.val} for choosing, ${division.test} for testing` + (division.repeats > 1 ? `, divided ${division.repeats} times` : '')],
      ['Version', `segcal ${found.segcal || data.segcal}`], ['Protocol', found.protocol_hash ? el('code', {}, found.protocol_hash) : null],
      ['Data fingerprint', prints.length ? prints.map(([key, value]) => el('div', {}, el('code', {}, value), ' ', name(key.slice(place.task.length + 2), 60))) : null],
      ['Seed of the divisions', found.seed], ['Intervals', found.bootstrap ? `${100 * found.bootstrap.level} %, ${count(found.bootstrap.replicates)} bootstrap replicates over repeats and cases, seed ${found.bootstrap.seed}` : null],
      ['Pooling', own ? data.poolings[own.pooling] || own.pooling : null],
    ]),
    fit ? el('details', {}, el('summary', {}, 'The fit of the chosen calibrator, and its certificate'), facts([
      ['Calibrator', el('code', {}, own.pipeline)], ['About it', (data.calibrators[own.pipeline.split('(')[0]] || {}).about], ['Method', fit.method],
      ['Reached its optimum', fit.converged ? `yes${fit.kkt_residual === null || fit.kkt_residual === undefined ? '' : `, residual ${fit.kkt_residual.toExponential(1)}`}` : 'no'],
      ['Voxels used', fit.voxels ? `${count(fit.voxels)} of ${count(fit.voxels_available)}` : null], ['Strength of the penalty', fit.lam === null || fit.lam === undefined ? null : `λ ${fit.lam}, μ ${fit.mu}`],
      ['Loss when fitted', lossText(fit.nll)], ['Loss on validation voxels', lossText(fit.validation_nll)], ['At a bound', (fit.active_bounds || []).slice(0, 12).join('; ')],
    ])) : null,
    own && own.evidence ? el('details', { id: 'evidence' }, el('summary', {}, 'The evidence behind each class'), el('p', { class: 'small soft' }, `Voxels of one patient or video say much the same: what counts is in how many of the ${count(own.groups)} groups of the fit a class is.`),
      el('div', { class: 'scroll' }, table(['Class', 'groups that have it', 'voxels, about'], own.evidence.map((row) => [name(row.name, 40), `${count(row.groups)} of ${count(own.groups)}`, count(row.voxels)]), { class: 'small' }))) : null,
    own && own.audit ? el('details', {}, el('summary', {}, `Audit of its promises: ${own.audit.passed ? 'passed' : 'FAILED'}`), el('p', { class: 'small soft' }, 'Each promise is checked on the fitted numbers and tried on 60,000 voxels made to break it.'), el('pre', {}, own.audit.text)) : null,
    own && own.cases ? el('details', {}, el('summary', {}, 'Which cases had which part'), ['cal', 'val', 'test'].map((part) => el('p', { class: 'small' }, el('b', {}, { cal: 'Fitting', val: 'Choosing', test: 'Testing' }[part] + `, ${own.cases[part].count}: `),
      own.cases[part].names.map((each, k) => [k ? ', ' : '', name(each, 60)]), own.cases[part].names.length < own.cases[part].count ? ' …' : ''))) : null);
}

function showStudies(figures, place) {
  const own = figures.filter((figure) => !figure.task || figure.task === place.task);
  if (!own.length) { show('studies'); return; }
  show('studies', heading('studies', 'A closer look', 'Figures of the studies that were run on these results.'), el('div', { class: 'studies' },
    own.map((figure) => el('figure', { 'data-figure': figure.name }, el('figcaption', {}, figure.title), el('div', { class: 'paper' }, el('img', { src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(figure.svg)}`, alt: figure.title })), el('p', { class: 'small soft', css: { 'margin-top': '.4rem' } }, figure.text)))));
}

function showGlossary(data) {
  const words = [
    ['Voxel', 'One point of a scan; in a 2-D image, a pixel.'], ['Confidence', 'The probability that the model gives to the class it predicts.'],
    ['Calibrated', 'Of all voxels with 80 % confidence, 80 % are right; and so for every level.'],
    ['Mask', 'The class that the model predicts in every voxel: its segmentation.'],
    ['Interval', 'If other cases of the same kind had been drawn, the number would mostly lie in this range.'],
    ['Keeps the mask', 'The calibrator changes the confidence, never the predicted class.'],
    ['Ignores a shift of all scores', 'Adding one number to all raw scores of a voxel does not change the result, as it does not change the network’s own probabilities.'],
    ['Free energy', 'The level of the raw scores of a voxel. It has no meaning for the probabilities, but calibrators that see it can be misled by it.'],
    ...Object.values(data.metrics).map((metric) => [metric.title, metric.explained]),
  ];
  show('glossary', heading('glossary', 'Words'), facts(words));
}
