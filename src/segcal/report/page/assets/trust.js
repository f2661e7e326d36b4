// How far each structure can be trusted: a table with what to look at first, and the three masks of the first rows.
const NESTED = [null, [86, 180, 233], [230, 159, 0], [0, 158, 115]];
const nestedNames = (level) => [null, `outer mask: holds ${level} of the structure, on average over cases, or groups of them`, 'mask', `inner mask: ${level} of it is the structure, likewise`];

function spanText(low, high, text) {
  return low === null || high === null ? '–' : `${text(low)} to ${text(high)}`;
}

const size = (value) => Number(value.toPrecision(3)).toLocaleString('en', { maximumFractionDigits: 3 });

const wrapped = { class: 'left wrapped' };

function trustRow(row, own) {
  const dice = (value) => value.toFixed(2);
  return el('tr', {}, el('th', { scope: 'row', class: 'part' }, name(row.structure, 40)),
    el('td', {}, dice(row.expected_dice) + (row.corrected ? '' : ' raw'), el('span', { class: 'sub' }, spanText(row.dice_low, row.dice_high, dice))),
    el('td', {}, row.dice_below_tau === null ? '–' : percent(row.dice_below_tau, 0), own ? el('span', { class: 'sub' }, `tau ${row.tau}`) : null),
    el('td', {}, `${size(row.volume)} ${row.unit}`, el('span', { class: 'sub' }, spanText(row.volume_low, row.volume_high, size))),
    el('td', wrapped, row.review ? name(row.reason, 160) : row.reason ? ['no (', name(row.reason, 160), ')'] : 'no'));
}

// The last column holds sentences.
const withReason = (headings) => headings.map((text, k) => el('th', { scope: 'col', class: k + 1 === headings.length ? 'left' : null }, text));

// A case, and its structures below it.
function caseRows(one, rows, own) {
  const head = el('tr', { class: one.review ? 'chosen' : 'case' }, el('th', { scope: 'row' }, name(one.case, 48)), el('td', {}, `lowest ${one.expected_dice.toFixed(2)}`),
    el('td', {}, one.dice_below_tau === null ? '–' : percent(one.dice_below_tau, 0)), el('td', {}),
    el('td', wrapped, one.review ? `review ${one.to_review} of ${one.structures} structures` : 'no'));
  return [head, rows.filter((row) => row.case === one.case).map((row) => trustRow(row, own))];
}

function paintNested(levels, image) {
  return paintPixels(levels, (k) => {
    const colour = NESTED[byteAt(levels, k)];
    return colour ? blend(under({ image }, k), colour, 0.5) : under({ image }, k);
  });
}

async function trustImage(one) {
  const [levels, image] = await Promise.all([decode(one.levels), one.image ? decode(one.image) : null]);
  return el('figure', {}, el('div', { class: 'map' }, fill(paintNested(levels, image), { role: 'img', 'aria-label': 'Outer mask, mask and inner mask' }, [])),
    el('figcaption', {}, name(one.structure, 40), ' of ', name(one.case, 40),
      el('span', {}, one.slices > 1 ? `slice ${one.index + 1} of ${one.slices}; ` : '', one.why || 'no reason to review')));
}

async function showTrust(data) {
  const found = data.trust;
  if (!found) { show('trust'); return; }
  const level = `${+(100 * found.level).toFixed(1)} %`;
  const own = typeof found.tau === 'object';
  const headings = ['Case and structure', `Expected Dice, ${level}`, `Dice < ${own ? 'tau' : found.tau}`, `Volume, ${level}`, 'Review?'];
  const images = el('div', { class: 'maps', id: 'trust-maps' });
  const keyed = el('div', { class: 'legend' }, [1, 2, 3].map((k) => el('span', {}, el('i', { css: { background: rgb(NESTED[k]) } }), nestedNames(level)[k])));
  const derived = found.biomarkers.length ? el('div', { class: 'scroll', css: { 'margin-top': '1.2rem' } }, table(['Subject', 'Biomarker', 'Value', level, 'Of the masks'],
    found.biomarkers.map((row) => [name(row.subject, 48), name(row.biomarker, 40), row.value === null ? name(row.reason, 60) : size(row.value), spanText(row.low, row.high, size), row.mask_value === null ? '–' : size(row.mask_value)]))) : null;
  show('trust', heading('trust', 'How far each structure can be trusted',
    `${found.flagged_cases} of ${found.of_cases} cases and ${found.flagged} of ${found.of} structures should be looked at; they stand first. ${found.promise} Nothing is promised for a single case.`),
  found.alarms.map((text) => el('p', { class: 'note', role: 'alert' }, text)), found.images.length ? [keyed, images] : null,
  el('div', { class: 'scroll', id: 'trust-cases' }, table(withReason(headings), found.cases.flatMap((one) => caseRows(one, found.rows, own)).flat())),
  found.cases.length < found.of_cases ? el('p', { class: 'small soft' }, `The first ${found.cases.length} of ${found.of_cases} cases; worklist.csv has all.`) : null,
  found.rows.length < found.of ? el('p', { class: 'small soft' }, `The first ${found.rows.length} of ${found.of} rows; trust.csv has all.`) : null, derived);
  images.replaceChildren(...await Promise.all(found.images.map(trustImage)));
  images.dataset.ready = 'yes';
}

// Masks with a bound and lists of objects: what was promised, and what was found on these labelled cases.
function showDecided(data) {
  const found = data.decided;
  if (!found) { show('decided'); return; }
  const share = (value) => (value === null ? '–' : percent(value));
  const bounded = found.bounded.map((row) => [el('span', {}, name(row.structure, 40), el('span', { class: 'sub' }, row.rule), row.note ? el('span', { class: 'sub' }, name(row.note, 160)) : null), row.threshold === null ? '–' : row.threshold.toPrecision(2), share(row.promised), `${share(row.found)} in ${row.cases}`, row.size === null ? '–' : `${size(row.size)} ×`]);
  const listed = found.listed.map((row) => [name(row.structure, 40), row.objects, row.listed, share(row.false_share), row.expected === null ? '–' : `${row.expected.toFixed(1)} / ${row.real.toFixed(1)}`, `${row.missed.toFixed(1)} / ${row.missed_found.toFixed(1)}`]);
  show('decided', heading('decided', 'Masks with a bound, and objects', `What segcal decide and segcal objects promise, and what was found on ${found.cases} of ${found.of} cases. Predicted masks stay as they are.`),
    bounded.length ? el('div', { class: 'scroll' }, table(['Structure and rule', 'Threshold', 'Promised', 'Found, mean of cases', 'Size beside the preserved mask'], bounded)) : null,
    listed.length ? el('div', { class: 'scroll', css: { 'margin-top': '1.2rem' } }, table(['Objects of', 'Components', 'Listed', 'False in a list, mean', 'Real per case, expected / found', 'Missed per case, expected / found'], listed)) : null,
    el('ul', { class: 'small soft', css: { 'margin-top': '.6rem' } }, found.promises.map((text) => el('li', {}, text))));
}
