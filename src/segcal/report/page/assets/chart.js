// A plain set of axes in SVG: linear scales, a few lines of grid, titles in words.
function axes(options) {
  const { width, height, left = 64, right = 14, top = 12, bottom = 46, x, y } = options;
  const scale = (range, from, to) => (value) => from + ((value - range[0]) / (range[1] - range[0])) * (to - from);
  const px = scale(x.range, left, width - right);
  const py = scale(y.range, height - bottom, top);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: options.role || 'img', 'aria-label': options.label });
  for (const tick of x.ticks || []) {
    root.append(svg('line', { class: 'grid', x1: px(tick), x2: px(tick), y1: top, y2: height - bottom }));
    root.append(svg('text', { x: px(tick), y: height - bottom + 17, 'text-anchor': 'middle' }, x.format(tick)));
  }
  for (const tick of y.ticks || []) {
    root.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: py(tick), y2: py(tick) }));
    root.append(svg('text', { x: left - 8, y: py(tick) + 4, 'text-anchor': 'end' }, y.format(tick)));
  }
  root.append(svg('line', { class: 'axis', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (x.title) root.append(svg('text', { class: 'title', x: (left + width - right) / 2, y: height - 8, 'text-anchor': 'middle' }, x.title));
  if (y.title) {
    const middle = (top + height - bottom) / 2;
    root.append(svg('text', { class: 'title', x: 13, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 13 ${middle})` }, y.title));
  }
  return { root, px, py };
}

function shape(kind, x, y, size, colour) {
  const half = size * 0.89;
  const style = { fill: colour, stroke: 'var(--paper)', 'stroke-width': 1 };
  if (kind === 'square') return svg('rect', { x: x - half, y: y - half, width: 2 * half, height: 2 * half, ...style });
  const points = {
    diamond: [[0, -1.35], [1.2, 0], [0, 1.35], [-1.2, 0]], up: [[0, -1.25], [1.2, 0.95], [-1.2, 0.95]],
    down: [[0, 1.25], [1.2, -0.95], [-1.2, -0.95]],
  }[kind];
  if (!points) return svg('circle', { cx: x, cy: y, r: size, ...style });
  return svg('polygon', { points: points.map(([a, b]) => `${x + a * size},${y + b * size}`).join(' '), ...style });
}

const isNarrow = () => window.innerWidth < 560;

// Round steps that cover a range from zero.
function ticksTo(largest, most = 5) {
  if (!(largest > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(largest / most));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => largest / each <= most);
  const ticks = [];
  for (let k = 0; (k - 1) * step < largest; k += 1) ticks.push(k * step);
  return ticks;
}
