// Everything is drawn from the embedded document; what a reader picks is kept in `state`.
const data = JSON.parse(document.getElementById('data').textContent);
const figures = JSON.parse(document.getElementById('figures').textContent);
const state = { place: 0, where: WHERE_ALL, picked: [], only: new Set(), sort: null, down: false, intervals: false, more: false, order: 'worst', case: null, slice: null, voxel: null, after: null };

function showPlace(number) {
  const place = data.places[number];
  const calibrated = place.rows.find((row) => row.pipeline !== place.baseline);
  Object.assign(state, { place: number, case: null, slice: null, voxel: null });
  state.after = place.chosen && place.chosen !== place.baseline ? place.chosen : calibrated ? calibrated.pipeline : place.rows[0].pipeline;
  state.picked = [...new Set([place.baseline, state.after])].filter(Boolean);
  repaint.length = 0;
  document.querySelectorAll('#places button').forEach((button, k) => button.setAttribute('aria-current', String(k === number)));
  showVerdict(data, place);
  showReliability(data, place, state);
  showTable(data, place, state);
  showCases(data, place, state);
  const again = () => { showBands(data, place, state, again); showClasses(data, place, state, again); showScatter(data, place, state, again); };
  again();
  showStudies(figures, place);
  showProvenance(data, place);
}

function placeText(place) {
  return place.test_on ? `${plainName(place.task, 24)} → ${plainName(place.test_on, 24)}` : plainName(place.task, 40);
}

const THEMES = ['auto', 'light', 'dark'];

function setTheme(theme) {
  if (theme === 'auto') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.setAttribute('data-theme', theme);
  const button = document.getElementById('theme');
  button.textContent = `Theme: ${theme}`;
  button.onclick = () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
}

function download() {
  const blob = new Blob([JSON.stringify(data, null, 1)], { type: 'application/json' });
  const link = el('a', { href: URL.createObjectURL(blob), download: 'segcal-report.json' });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

show('places', data.places.length > 1 ? data.places.map((place, k) => el('button', { type: 'button', onclick: () => showPlace(k), title: place.id }, placeText(place))) : null);
// What is missing stands first; other remarks follow the verdict.
const urgent = (note) => note.includes('not finished');
show('notes', data.notes.filter(urgent).map((note) => el('p', { class: 'note' }, note)));
show('remarks', data.notes.filter((note) => !urgent(note)).map((note) => el('p', { class: 'note' }, note)));
document.getElementById('download').onclick = download;
document.getElementById('print').onclick = () => window.print();
window.addEventListener('beforeprint', () => document.querySelectorAll('details').forEach((each) => { each.open = true; }));
setTheme('auto');
showGlossary(data);
show('about', `Made on ${data.date} with segcal ${data.segcal}`);
showTrust(data);
showDecided(data);
if (data.places.length) showPlace(0);
else ['verdict', 'reliability', 'results', 'cases', 'bands', 'classes', 'scatter', 'studies', 'provenance'].forEach((id) => show(id));
document.documentElement.dataset.ready = 'yes';
