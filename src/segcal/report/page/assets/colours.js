// Okabe and Ito's palette: told apart with every kind of colour vision. Lines also differ in their dashes.
const LINES = ['var(--before)', 'var(--after)', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8a7a00', '#7f7f7f'];
const DASHES = ['', '', '7 3', '2 3', '8 3 2 3', '4 2', '1 3', '10 4'];
const SHAPES = ['circle', 'square', 'diamond', 'up', 'down', 'circle', 'square', 'diamond'];
const CLASSES = [
  [230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66], [0, 114, 178], [213, 94, 0], [204, 121, 167],
  [140, 86, 75], [127, 127, 127], [188, 189, 34], [23, 190, 207], [148, 103, 189], [255, 187, 120], [152, 223, 138],
  [255, 152, 150], [197, 176, 213], [196, 156, 148], [247, 182, 210], [219, 219, 141], [158, 218, 229],
];
// cividis at even steps.
const CIVIDIS = [
  [0, 34, 78], [8, 51, 112], [53, 69, 108], [79, 87, 108], [102, 105, 112], [125, 124, 120], [148, 142, 119],
  [174, 163, 113], [200, 184, 102], [229, 207, 82], [254, 232, 56],
];
// One scale for confidence everywhere: steps that a person can tell apart, finer towards certainty.
const LEVELS = [0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99];
const LEVEL_NAMES = ['< 50 %', '50–70', '70–80', '80–90', '90–95', '95–99', '≥ 99 %'];

function cividis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const first = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return CIVIDIS[first].map((value, k) => Math.round(value + (place - first) * (CIVIDIS[first + 1][k] - value)));
}

const LEVEL_COLOURS = LEVELS.map((_, k) => cividis(k / (LEVELS.length - 1)));

function levelOf(confidence) {
  let k = LEVELS.length - 1;
  while (k > 0 && confidence < LEVELS[k]) k -= 1;
  return k;
}

function classColour(number, background) {
  return background && number === 0 ? null : CLASSES[(number - (background ? 1 : 0)) % CLASSES.length];
}

function rgb(colour) {
  return colour === null ? 'transparent' : `rgb(${colour.join(',')})`;
}
