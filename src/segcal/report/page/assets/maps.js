// Images of a case: decoded once, painted on canvases. A byte k of a map means low + (high - low) k / 255.
async function decode(map) {
  const image = new Image();
  image.src = map.jpeg ? `data:image/jpeg;base64,${map.jpeg}` : `data:image/png;base64,${map.png}`;
  await image.decode();
  const canvas = el('canvas', { width: image.naturalWidth, height: image.naturalHeight });
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return { width: canvas.width, height: canvas.height, pixels: context.getImageData(0, 0, canvas.width, canvas.height).data, low: map.low, high: map.high };
}

async function decodeSlice(slice) {
  const keys = Object.keys(slice).filter((key) => slice[key] && typeof slice[key] === 'object');
  const maps = await Promise.all(keys.map((key) => decode(slice[key])));
  return Object.fromEntries(keys.map((key, k) => [key, maps[k]]));
}

const byteAt = (map, k) => map.pixels[4 * k];
const valueAt = (map, k) => map.low + ((map.high - map.low) * byteAt(map, k)) / 255;
const VOID = 255;

function paintPixels({ width, height }, colour) {
  const canvas = el('canvas', { width, height });
  const context = canvas.getContext('2d');
  const data = context.createImageData(width, height);
  for (let k = 0; k < width * height; k += 1) data.data.set([...colour(k), 255], 4 * k);
  context.putImageData(data, 0, 0);
  return canvas;
}

function paint(maps, colour) {
  return paintPixels(maps.truth, (k) => (byteAt(maps.truth, k) === VOID ? [90, 90, 90] : colour(k)));
}

function under(maps, k) {
  return maps.image ? [maps.image.pixels[4 * k], maps.image.pixels[4 * k + 1], maps.image.pixels[4 * k + 2]] : [40, 44, 48];
}

const blend = (below, above, share) => below.map((value, c) => Math.round((1 - share) * value + share * above[c]));

// Each view of a case: a title, what it shows, and the colour of a pixel; null where the case has no such map.
function views(maps, context) {
  const { background, energy, temperature } = context;
  const overlay = (map) => (k) => {
    const colour = classColour(byteAt(map, k), background);
    return colour === null ? under(maps, k) : blend(under(maps, k), colour, maps.image ? 0.55 : 0.9);
  };
  const grey = (k) => under(maps, k).map((value) => Math.round(0.45 * value + 30));
  const steps = (map) => (k) => LEVEL_COLOURS[levelOf(valueAt(map, k))];
  const spread = (map, range) => (k) => cividis((valueAt(map, k) - range[0]) / Math.max(range[1] - range[0], 1e-9));
  const flipped = maps.prediction_after;
  return [
    maps.image && { key: 'image', title: 'Input', note: 'what the model sees', paint: (k) => under(maps, k) },
    { key: 'truth', title: 'Truth', note: 'the labels', paint: overlay(maps.truth) },
    { key: 'prediction', title: 'Prediction', note: 'the mask', paint: overlay(maps.prediction) },
    { key: 'error', title: 'Errors', note: 'where prediction and truth differ', paint: (k) => (byteAt(maps.truth, k) === byteAt(maps.prediction, k) ? grey(k) : [230, 159, 0]) },
    { key: 'before', title: 'Confidence before', note: 'yellow is confident', paint: steps(maps.before) },
    { key: 'after', title: 'Confidence after', note: 'the same scale', paint: steps(maps.after) },
    maps.raters && { key: 'raters', title: 'Where experts disagree', note: 'share of experts who differ from the majority; yellow is half or more', paint: spread(maps.raters, [0, 0.5]) },
    maps.foreground_after && { key: 'contours', title: 'Where the edge may lie', note: 'structure is 5 % (blue), 50 % (white), 95 % (orange) likely, after', paint: grey, contours: maps.foreground_after },
    flipped && { key: 'flips', title: 'Mask changes', note: 'voxels that changed their class', paint: (k) => (byteAt(flipped, k) !== byteAt(maps.prediction, k) ? [86, 180, 233] : grey(k)) },
    maps.energy && { key: 'energy', title: 'Free energy', note: 'level of the raw scores', paint: spread(maps.energy, energy) },
    maps.temperature && { key: 'temperature', title: 'Local temperature', note: `of ${context.local || 'the calibrator'}; above 1 is softened`, paint: spread(maps.temperature, temperature) },
  ].filter(Boolean);
}

// Lines of equal probability, found between neighbouring pixels (marching squares).
function drawContours(canvas, map, truth, zoom) {
  const large = el('canvas', { width: canvas.width * zoom, height: canvas.height * zoom });
  const context = large.getContext('2d');
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  for (const [level, colour] of [[0.05, '#56b4e9'], [0.5, '#ffffff'], [0.95, '#e69f00']]) {
    context.strokeStyle = colour;
    context.lineWidth = Math.max(1.2, zoom / 2);
    context.beginPath();
    for (let y = 0; y + 1 < map.height; y += 1) {
      for (let x = 0; x + 1 < map.width; x += 1) squareLine(context, map, truth, x, y, level, zoom);
    }
    context.stroke();
  }
  return large;
}

function squareLine(context, map, truth, x, y, level, zoom) {
  const at = (i, j) => valueAt(map, (y + j) * map.width + x + i) - level;
  const corners = [[0, 0], [1, 0], [1, 1], [0, 1]];
  if (corners.some(([i, j]) => byteAt(truth, (y + j) * map.width + x + i) === VOID)) return; // nothing was predicted there
  const values = corners.map(([i, j]) => at(i, j));
  const cuts = [];
  for (let k = 0; k < 4; k += 1) {
    const [a, b] = [values[k], values[(k + 1) % 4]];
    if (a >= 0 === b >= 0) continue;
    const [from, to] = [corners[k], corners[(k + 1) % 4]];
    const share = a / (a - b);
    cuts.push([x + 0.5 + from[0] + share * (to[0] - from[0]), y + 0.5 + from[1] + share * (to[1] - from[1])]);
  }
  for (let k = 0; k + 1 < cuts.length; k += 2) {
    context.moveTo(cuts[k][0] * zoom, cuts[k][1] * zoom);
    context.lineTo(cuts[k + 1][0] * zoom, cuts[k + 1][1] * zoom);
  }
}
