// Sparklines of the last 15 minutes, with the newest figures in words.

import { $, element, number, perSecond, rate, seconds, set } from './words.js';

// Each series has its field, its class, and its name. The second line of a tile
// is dashed, so that colour is not all that tells them apart.
const tiles = [
  { name: 'Throughput', series: [['upBytesPerSecond', 'up', '↑ up'], ['downBytesPerSecond', 'down', '↓ down']], text: rate },
  { name: 'Dials', series: [['dialsPerSecond', 'up', 'all'], ['failedPerSecond', 'bad', 'failed']], text: perSecond },
  { name: 'Time to connect', series: [['dialSeconds', 'up', 'mean'], ['dialMaxSeconds', 'down', 'longest']], text: n => n ? seconds(n) : '–', whole: true }, // not known of a tenant
  { name: 'Connections', series: [['open', 'up', 'open'], ['stalled', 'bad', 'stalled']], text: number, live: true },
];

const width = 180, height = 48, span = 900; // of the drawing; seconds

function svg(tag, attributes) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

export function makeTiles() {
  for (const tile of tiles) {
    const box = element('div', 'tile' + (tile.whole ? ' whole' : ''));
    const now = element('dl', 'now');
    tile.figures = tile.series.map(([, kind, name], i) => {
      const pair = element('div', 'series ' + kind + (i ? ' second' : ''));
      const value = element('dd', '', '–');
      pair.append(element('dt', '', name), value);
      now.append(pair);
      return { pair, value };
    });
    tile.svg = svg('svg', { viewBox: '0 0 ' + width + ' ' + height, preserveAspectRatio: 'none', role: 'img', 'aria-label': tile.name });
    tile.area = svg('path', { class: 'area' });
    tile.lines = tile.series.map(([, kind], i) => svg('path', { class: 'line ' + kind + (i ? ' second' : '') }));
    tile.svg.append(tile.area, ...tile.lines);
    const axis = element('p', 'axis');
    tile.peak = element('span', '', '');
    axis.append(element('span', '', '−15 min'), tile.peak, element('span', '', 'now'));
    box.append(element('h3', '', tile.name), now, tile.svg, axis);
    $('tiles').append(box);
  }
}

function showNow(tile, point) {
  tile.series.forEach(([key, kind], i) => {
    const { pair, value } = tile.figures[i];
    set(value, point ? tile.text(point[key]) : '–');
    pair.classList.toggle('calm', kind === 'bad' && !(point && point[key] > 0));
  });
}

// Of one tenant the server keeps no history: the page remembers what it sees.

const interval = 5; // seconds
let points = [], last = null;

export function forgetHistory() {
  points = [];
  last = null;
  showHistory({ intervalSeconds: interval, points });
}

// remember is called at every look.
export function remember(s) {
  const at = Date.parse(s.now) / 1000;
  if (!last) {
    last = { at, dials: s.dials };
    showHistory({ intervalSeconds: interval, points });
  }
  if (at - last.at >= interval) add(s, at);
  showNow(tiles[0], s.rates);
}

function add(s, at) {
  const took = at - last.at;
  points.push({
    upBytesPerSecond: s.rates.upBytesPerSecond, downBytesPerSecond: s.rates.downBytesPerSecond, open: s.connections.open, stalled: s.connections.stalled,
    dialsPerSecond: Math.max(0, s.dials.total - last.dials.total) / took, failedPerSecond: Math.max(0, s.dials.failed - last.dials.failed) / took,
    dialSeconds: 0, dialMaxSeconds: 0,
  });
  points = points.slice(-span / interval);
  last = { at, dials: s.dials };
  showHistory({ intervalSeconds: interval, points });
}

// showOpen shows what is known at every look.
export function showOpen(connections) { showNow(tiles.find(t => t.live), connections); }

export function showHistory(h) {
  const slots = Math.round(span / h.intervalSeconds);
  const x = n => ((slots - h.points.length + n + 1) * width / slots).toFixed(1);
  for (const tile of tiles) {
    const top = Math.max(1e-9, ...tile.series.map(([key]) => Math.max(0, ...h.points.map(p => p[key]))));
    tile.series.forEach(([key], i) => {
      const at = h.points.map((p, n) => x(n) + ' ' + (height - 2 - (height - 4) * p[key] / top).toFixed(1));
      const line = at.length ? 'M' + at.join('L') : '';
      tile.lines[i].setAttribute('d', line);
      if (i === 0) tile.area.setAttribute('d', line && line + 'L' + width + ' ' + height + 'L' + x(0) + ' ' + height + 'Z');
    });
    if (!tile.live) showNow(tile, h.points[h.points.length - 1]);
    set(tile.peak, h.points.length === 0 ? 'first figures in ' + h.intervalSeconds + ' s' : top > 1e-9 ? 'peak ' + tile.text(top) : 'nothing yet');
    tile.svg.setAttribute('aria-label', tile.name + ' over the last 15 minutes: ' + tile.series.map(([, , name], i) =>
      name.replace(/^\W+/, '') + ' now ' + tile.figures[i].value.textContent).join(', ') + '; ' + tile.peak.textContent);
  }
}
