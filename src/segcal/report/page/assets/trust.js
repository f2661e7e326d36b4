// How far each structure can be trusted: a table with what to look at first, and the three masks of the first rows.
const NESTED = [null, [86, 180, 233], [230, 159, 0], [0, 158, 115]];
const nestedNames = (level) => [null, `outer mask: holds ${level} of the structure, on average over draws (groups, or cases without one)`, 'mask', `inner mask: ${level} of it is the structure, likewise`];

function spanText(low, high, text) {
  return low === null || high === null ? '–' : `${text(low)} to ${text(high)}`;
}

const size = (value) => Number(value.toPrecision(3)).toLocaleString('en', { maximumFractionDigits: 3 });

function trustRow(row, own) {
  const dice = (value) => value.toFixed(2);
  return el('tr', { class: row.review ? 'chosen' : null }, el('th', { scope: 'row' }, name(row.case, 48), el('span', { class: 'sub' }, name(row.structure, 40))),
    el('td', {}, dice(row.expected_dice) + (row.corrected ? '' : ' raw'), el('span', { class: 'sub' }, spanText(row.dice_low, row.dice_high, dice))),
    el('td', {}, row.dice_below_tau === null ? '–' : percent(row.dice_below_tau, 0), own ? el('span', { class: 'sub' }, `tau ${row.tau}`) : null),
    el('td', {}, `${size(row.volume)} ${row.unit}`, el('span', { class: 'sub' }, spanText(row.volume_low, row.volume_high, size))),
    el('td', { class: 'left', css: { 'white-space': 'normal' } }, row.review ? name(row.reason, 160) : row.reason ? ['no (', name(row.reason, 160), ')'] : 'no'));
}

// The last column holds sentences.
const withReason = (headings) => headings.map((text, k) => el('th', { scope: 'col', class: k + 1 === headings.length ? 'left' : null }, text));

function caseRow(row) {
  return el('tr', { class: row.review ? 'chosen' : null }, el('th', { scope: 'row' }, name(row.case, 48)), el('td', {}, `${row.to_review} of ${row.structures}`),
    el('td', {}, row.dice_below_tau === null ? '–' : percent(row.dice_below_tau, 0)), el('td', {}, row.expected_dice.toFixed(2)),
    el('td', { class: 'left', css: { 'white-space': 'normal' } }, row.review ? name(row.reason, 240) : 'no'));
}

function paintNested(levels, image) {
  return paintPixels(levels, (k) => {
    const colour = NESTED[byteAt(levels, k)];
    return colour ? blend(under({ image }, k), colour, 0.5) : under({ image }, k);
  });
}

async function trustPicture(one) {
  const [levels, image] = await Promise.all([decode(one.levels), one.image ? decode(one.image) : null]);
  return el('figure', {}, el('figcaption', {}, name(one.structure, 40), ' of ', name(one.case, 40),
    el('span', {}, one.slices > 1 ? `slice ${one.index + 1} of ${one.slices}; ` : '', one.why || 'no reason to review')),
  el('div', { class: 'map' }, fill(paintNested(levels, image), { role: 'img', 'aria-label': 'Outer mask, mask and inner mask' }, [])));
}

async function showTrust(data) {
  const found = data.trust;
  if (!found) { show('trust'); return; }
  const level = `${+(100 * found.level).toFixed(1)} %`;
  const own = typeof found.tau === 'object';
  const headings = ['Case and structure', `Expected Dice, ${level}`, `Dice < ${own ? 'tau' : found.tau}`, `Volume, ${level}`, 'Review?'];
  const pictures = el('div', { class: 'maps', id: 'trust-maps' });
  const keyed = el('div', { class: 'legend' }, [1, 2, 3].map((k) => el('span', {}, el('i', { css: { background: rgb(NESTED[k]) } }), nestedNames(level)[k])));
  const derived = found.biomarkers.length ? el('div', { class: 'scroll', css: { 'margin-top': '1.2rem' } }, table(['Subject', 'Biomarker', 'Value', level, 'Of the masks'],
    found.biomarkers.map((row) => [name(row.subject, 48), name(row.biomarker, 40), row.value === null ? name(row.reason, 60) : size(row.value), spanText(row.low, row.high, size), row.mask_value === null ? '–' : size(row.mask_value)]))) : null;
  show('trust', heading('trust', 'How far each structure can be trusted',
    `${found.flagged_cases} of ${found.of_cases} cases and ${found.flagged} of ${found.of} structures should be looked at; they stand first. ${found.promise} Nothing is promised for a single case.`),
  found.alarms.map((text) => el('p', { class: 'note', role: 'alert' }, text)), found.pictures.length ? [keyed, pictures] : null,
  el('div', { class: 'scroll', id: 'trust-cases', css: { 'margin-bottom': '1.2rem' } }, table(withReason(['Case', 'To review', 'Bad mask', 'Lowest expected Dice', 'Review?']), found.cases.map(caseRow))), found.cases.length < found.of_cases ? el('p', { class: 'small soft' }, `The first ${found.cases.length} of ${found.of_cases} cases; worklist.csv has all.`) : null,
  el('div', { class: 'scroll' }, table(withReason(headings), found.rows.map((row) => trustRow(row, own)))),
  found.rows.length < found.of ? el('p', { class: 'small soft' }, `The first ${found.rows.length} of ${found.of} rows; trust.csv has all.`) : null, derived);
  pictures.replaceChildren(...await Promise.all(found.pictures.map(trustPicture)));
  pictures.dataset.ready = 'yes';
}
