// Elements are made with text only: whatever a name holds, it is never read as HTML.
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'css') for (const [name, entry] of Object.entries(value)) node.style.setProperty(name, entry);
    else node.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function show(id, ...children) {
  const node = document.getElementById(id);
  node.replaceChildren();
  node.hidden = children.flat().filter(Boolean).length === 0;
  return fill(node, {}, children);
}

// A name of any length and script, kept from changing the direction of what stands around it.
function name(text, most = 60) {
  const whole = String(text);
  const letters = Array.from(whole);
  return letters.length <= most ? el('bdi', {}, whole) : el('bdi', { title: whole }, letters.slice(0, most - 1).join('') + '…');
}

function plainName(text, most = 44) {
  const letters = Array.from(String(text).replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, ''));
  return letters.length <= most ? letters.join('') : letters.slice(0, most - 1).join('') + '…';
}

function heading(id, text, lead) {
  return [el('h2', { id: 'h-' + id }, text), lead ? el('p', { class: 'lead' }, lead) : null];
}

function choice(label, options, value, change, extra) {
  const select = el('select', { onchange: () => change(select.value), ...extra },
    options.map(([key, text]) => el('option', { value: key, selected: key === value }, plainName(text))));
  return el('label', {}, label, ' ', select);
}

function check(text, on, change, extra) {
  const box = el('input', { type: 'checkbox', checked: on, onchange: () => change(box.checked), ...extra });
  return el('label', {}, box, ' ', text);
}

// Headings and rows; the first cell of a row is its heading. A row that is an element stands as it is.
function table(headings, rows, attributes) {
  const head = (text) => (text instanceof Node ? text : el('th', { scope: 'col' }, text));
  const line = (cells) => (cells instanceof Node ? cells : el('tr', {}, el('th', { scope: 'row' }, cells[0]), cells.slice(1).map((cell) => el('td', {}, cell))));
  return el('table', attributes, el('thead', {}, el('tr', {}, headings.map(head))), el('tbody', {}, rows.map(line)));
}
