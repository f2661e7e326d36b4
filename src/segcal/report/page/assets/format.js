// Numbers as people read them.
function percent(value, digits = 1) {
  return value === null || value === undefined ? '–' : (100 * value).toFixed(digits) + '\u00a0%';
}

function count(value) {
  return Math.round(value).toLocaleString('en');
}

function compact(value) {
  return value.toLocaleString('en', { notation: 'compact' });
}

function metricText(metric, value) {
  if (value === null || value === undefined) return '–';
  if (!metric.percent) return value.toFixed(Math.abs(value) < 0.1 ? 4 : 3);
  return (100 * value).toFixed(metric.name === 'dice' || metric.name === 'accuracy' || metric.name === 'miou' ? 1 : 2);
}

function intervalText(metric, one) {
  if (one.low === null || one.high === null || one.low === one.high) return '';
  return `${metricText(metric, one.low)} to ${metricText(metric, one.high)}`;
}

function bandText(edges, k) {
  return k + 1 < edges.length ? `${edges[k]} to ${edges[k + 1]} voxels` : `${edges[k]} voxels and more`;
}

function pipelineText(data, row) {
  return data.calibrators[row.calibrator] ? data.calibrators[row.calibrator].title : row.calibrator;
}

function poolingText(data, row) {
  return data.poolings[row.pooling] || row.pooling;
}

// What a pipeline is called in a list: the calibrator in words, and the pooling where several were tried.
function label(data, place, title) {
  const row = place.rows.find((each) => each.pipeline === title);
  if (!row) return title;
  const several = new Set(place.rows.map((each) => each.pooling)).size > 1;
  const options = place.rows.filter((each) => each.calibrator === row.calibrator && each.pooling === row.pooling).length > 1;
  const text = pipelineText(data, row) + (several ? ` · ${poolingText(data, row)}` : '');
  return options ? `${text} · ${title}` : text;
}
