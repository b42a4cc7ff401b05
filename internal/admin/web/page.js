// The status page. It asks the API of the process that serves it, nothing else,
// and writes text only by textContent.

const api = '/api/v1/';
const every = 800;      // ms between looks; with the server's own this shows a stall within 2 s
const rowHeight = 32;   // as in the style sheet
const ahead = 40;       // rows that are loaded beyond what is seen
const shownPeers = 8;
const shownFailures = 50;

const $ = id => document.getElementById(id);

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function set(e, text) { if (e.textContent !== text) e.textContent = text; }

// Words for figures.

function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1000; i++; }
  return (n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)) + ' ' + units[i];
}

const rate = n => n > 0 ? bytes(n) + '/s' : '–';

function seconds(s) {
  if (s < 1e-3) return Math.max(1, Math.round(s * 1e6)) + ' µs';
  if (s < 1) return (s * 1e3).toFixed(s < 0.01 ? 1 : 0) + ' ms';
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min';
  if (s < 172800) return Math.floor(s / 3600) + ' h';
  return Math.floor(s / 86400) + ' d';
}

const clock = t => new Date(t).toLocaleTimeString('en-GB');
const number = n => n.toLocaleString('en');
const perSecond = n => (n >= 10 ? Math.round(n) : n.toFixed(1)) + '/s';
const plural = (n, word) => number(n) + ' ' + word + (n === 1 ? '' : 's');

let skew = 0; // of the server's clock to ours, ms
const age = since => Math.max(0, (Date.now() + skew - Date.parse(since)) / 1000);

async function ask(path) {
  const response = await fetch(api + path, { signal: AbortSignal.timeout(5000), cache: 'no-store' });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

// Header and the whole.

let status = null;

function showStatus(s) {
  status = s;
  skew = Date.parse(s.now) - Date.now();
  document.title = (s.connections.stalled ? '▲ ' : '') + s.component + (s.id ? ' ' + s.id : '');
  set($('component'), s.component);
  set($('about'), [s.id, s.build.version, 'up ' + seconds(age(s.started)), s.serverCount ? plural(s.serverCount, 'server') : '',
    s.strategies ? Object.entries(s.strategies).map(([name, n]) => name + ': ' + plural(n, 'agent')).join(', ') : ''].filter(Boolean).join(' · '));
  showNow(tiles.find(t => t.live), s.connections);
  const ready = $('ready');
  ready.className = 'pill ' + (s.ready ? 'good' : 'bad');
  set(ready, s.ready ? 'ready' : 'not ready: ' + (s.reason || ''));
  set($('self'), s.component);
  set($('self-id'), s.id || '');
  set($('self-rates'), plural(s.connections.open, 'connection'));
  $('self-more').className = s.connections.stalled ? 'bad' : 'soft';
  set($('self-more'), s.connections.stalled ? plural(s.connections.stalled, 'connection') + ' stalled' : 'none stalled');
}

// Sparklines.

const tiles = [
  { name: 'Throughput', series: [['upBytesPerSecond', 'c-up', '↑ '], ['downBytesPerSecond', 'c-down', '↓ ']], text: rate, colored: true },
  { name: 'Dials', series: [['dialsPerSecond', 'c-up', ''], ['failedPerSecond', 'c-bad', 'failed ']], text: perSecond },
  { name: 'Time to connect', series: [['dialSeconds', 'c-up', 'mean '], ['dialMaxSeconds', 'c-down', 'max ']], colored: true, text: n => n ? seconds(n) : '–' },
  { name: 'Connections', series: [['open', 'c-up', ''], ['stalled', 'c-bad', 'stalled ']], text: number, live: true },
];

function svg(tag, attributes) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

function makeTiles() {
  for (const tile of tiles) {
    const box = element('div', 'tile');
    box.append(element('h3', '', tile.name), tile.now = element('p', 'now'));
    tile.svg = svg('svg', { viewBox: '0 0 180 48', preserveAspectRatio: 'none', role: 'img' });
    tile.paths = tile.series.map(([, color], i) => {
      const area = i === 0 ? svg('path', { class: 'area ' + color }) : null;
      const line = svg('path', { class: color });
      if (area) tile.svg.append(area);
      tile.svg.append(line);
      return { area, line };
    });
    tile.peak = element('p', 'peak');
    tile.peak.append(element('span', '', '−15 min'), element('span'), element('span', '', 'now'));
    box.append(tile.svg, tile.peak);
    $('tiles').append(box);
  }
}

// showNow puts a tile's newest figures into words.
function showNow(tile, point) {
  const [main, ...others] = tile.series.map(([key, color, word], i) => {
    const e = element(i === 0 ? 'span' : 'small', '', word + (point ? tile.text(point[key]) : '–'));
    if (color === 'c-bad' && point && point[key]) e.className = 'bad';
    if (tile.colored) e.className = color.slice(2);
    return e;
  });
  tile.now.replaceChildren(main, ' ', ...others);
}

function showHistory(h) {
  const slots = Math.round(900 / h.intervalSeconds);
  for (const tile of tiles) {
    const top = Math.max(1e-9, ...tile.series.map(([key]) => Math.max(0, ...h.points.map(p => p[key]))));
    tile.series.forEach(([key], i) => {
      const at = h.points.map((p, n) => ((slots - h.points.length + n + 1) * 180 / slots).toFixed(1) + ' ' + (46 - 44 * p[key] / top).toFixed(1));
      const line = at.length ? 'M' + at.join('L') : '';
      tile.paths[i].line.setAttribute('d', line);
      if (tile.paths[i].area) tile.paths[i].area.setAttribute('d', at.length ? line + 'L180 46L' + at[0].split(' ')[0] + ' 46Z' : '');
    });
    if (!tile.live) showNow(tile, h.points[h.points.length - 1]);
    const highest = top > 1e-9 ? 'peak ' + tile.text(top) : '';
    set(tile.peak.children[1], highest);
    tile.svg.setAttribute('aria-label', tile.name + ' over the last 15 minutes: now ' + tile.now.textContent + (highest ? ', ' + highest : ''));
  }
}

// Topology: who is on either side of this process.

const roleNames = { client: ['sidecar', 'sidecars'], server: ['server', 'servers'], agent: ['agent', 'agents'] };

function showPeers([clients, servers, agents]) {
  if (!status) return;
  if (status.component === 'konnectivity-agent') {
    showSide('left', 'server', servers);
    showSide('right', '', agents);
  } else if (status.peers.server !== undefined) { // a sidecar
    showSide('left', '', clients);
    showSide('right', 'server', servers);
  } else {
    showSide('left', 'client', clients);
    showSide('right', 'agent', agents);
  }
}

function showSide(side, role, page) {
  const n = page.matched;
  set($(side + '-title'), role ? number(n) + ' ' + roleNames[role][n === 1 ? 0 : 1] : side === 'left' ? 'clients' : 'destinations');
  const list = $(side).querySelector('ul');
  const nodes = page.items.map(peerNode);
  if (!role) nodes.push(message(plural(status.connections.open, 'connection') + (side === 'left' ? ' from clients' : ' to destinations')));
  else if (n === 0) nodes.push(message(role === 'client' ? 'no sidecar is linked; kube-apiserver and old sidecars show as connections' : 'no ' + roleNames[role][0] + ' is connected', role !== 'client'));
  else if (n > shownPeers) nodes.push(message('and ' + number(n - shownPeers) + ' more; these are the busiest'));
  list.replaceChildren(...nodes);
}

function message(text, bad) {
  const li = element('li', 'soft', text);
  if (bad) li.className = 'bad';
  return li;
}

function peerNode(p) {
  const li = element('li', 'node peer' + (p.stalled ? ' stalled' : p.upBytesPerSecond + p.downBytesPerSecond > 0 ? ' flowing' : ''));
  const name = element('strong', '', p.role === 'client' && p.software ? p.software + ' ' + p.remote : p.id || p.remote);
  name.title = [p.id, p.remote, p.software, p.identifiers].filter(Boolean).join('\n');
  li.append(name, element('span', 'up', '↑ ' + rate(p.upBytesPerSecond)), element('span', 'down', '↓ ' + rate(p.downBytesPerSecond)),
    element('span', 'soft', plural(p.streams, 'stream')), element('span', 'soft', p.roundTripSeconds ? seconds(p.roundTripSeconds) + ' round trip' : p.protocol));
  if (p.stalled) li.append(element('span', 'bad', number(p.stalled) + ' stalled'));
  if (p.draining) li.append(element('span', 'bad', 'draining'));
  return li;
}

// Connections: a window of the list, of which the server sorts and filters all.

const columns = [
  ['state', 'State'], ['id', 'ID'], ['front', 'Front'], ['source', 'Source'], ['destination', 'Destination'], ['next', 'Next hop'],
  ['since', 'Age', 'num'], ['up', 'Up', 'num'], ['down', 'Down', 'num'],
];
const list = { sort: '-state', filter: '', state: '', offset: 0, items: [], matched: 0, generation: 0, busy: false, again: false };

function makeHeads() {
  for (const [key, name, kind] of columns) {
    const th = element('th', 'w-' + key + (kind ? ' ' + kind : ''));
    th.scope = 'col';
    const button = element('button', '', name);
    button.type = 'button';
    button.addEventListener('click', () => {
      const first = ['state', 'up', 'down'].includes(key) ? '-' : '';
      list.sort = list.sort === first + key ? (first ? key : '-' + key) : first + key;
      markSort();
      restart();
    });
    th.append(button);
    th.dataset.key = key;
    $('heads').append(th);
  }
  markSort();
}

function markSort() {
  for (const th of $('heads').children) {
    // Age counts against since.
    const down = list.sort === '-' + th.dataset.key;
    const own = list.sort.replace('-', '') === th.dataset.key;
    if (own) th.setAttribute('aria-sort', down !== (th.dataset.key === 'since') ? 'descending' : 'ascending');
    else th.removeAttribute('aria-sort');
  }
}

function restart() {
  list.generation++;
  $('scroll').scrollTop = 0;
  load().catch(() => {}); // the loop tells of a server that is away
}

function visible() {
  const box = $('scroll');
  const first = Math.max(0, Math.floor(box.scrollTop / rowHeight));
  return [first, Math.ceil(box.clientHeight / rowHeight) + 1];
}

async function load() {
  if (list.busy) { list.again = true; return; }
  list.busy = true;
  try {
    do {
      list.again = false;
      const generation = list.generation;
      const [first, count] = visible();
      const offset = Math.max(0, first - ahead);
      const query = new URLSearchParams({ offset, limit: count + 2 * ahead, sort: list.sort, filter: list.filter, state: list.state });
      const page = await ask('connections?' + query);
      if (generation === list.generation) {
        Object.assign(list, { offset, items: page.items, matched: page.matched, total: page.total });
        draw();
      } else list.again = true;
    } while (list.again);
  } finally { list.busy = false; }
}

// draw shows the loaded rows between two gaps that stand for all others.
function draw() {
  const body = $('rows');
  let row = body.firstElementChild;
  if (!row) { body.append(gap(), gap()); row = body.firstElementChild; }
  const last = body.lastElementChild;
  row.firstElementChild.style.height = list.offset * rowHeight + 'px';
  let at = row.nextElementSibling;
  for (let i = 0; i < list.items.length; i++) {
    if (at === last) { body.insertBefore(makeRow(), last); at = last.previousElementSibling; }
    fill(at, list.items[i], list.offset + i);
    at = at.nextElementSibling;
  }
  while (at !== last) { const next = at.nextElementSibling; at.remove(); at = next; }
  last.firstElementChild.style.height = Math.max(0, list.matched - list.offset - list.items.length) * rowHeight + 'px';
  $('table').setAttribute('aria-rowcount', list.matched + 1);
  set($('count'), list.matched === list.total ? plural(list.total, 'connection') : number(list.matched) + ' of ' + plural(list.total, 'connection'));
  $('empty').hidden = list.matched > 0;
  set($('empty'), list.total ? 'No connection matches the filter.' : 'No connection is open.');
}

function gap() {
  const tr = element('tr', 'gap');
  tr.setAttribute('aria-hidden', 'true');
  const td = element('td');
  td.colSpan = columns.length;
  tr.append(td);
  return tr;
}

function makeRow() {
  const tr = element('tr');
  for (const [key, , kind] of columns) {
    const td = element('td', kind || '');
    if (key === 'id') {
      const button = element('button');
      button.type = 'button';
      button.addEventListener('click', () => showDetail(tr.connection));
      td.append(button);
    }
    tr.append(td);
  }
  return tr;
}

function fill(tr, c, index) {
  tr.connection = c;
  tr.setAttribute('aria-rowindex', index + 2);
  const [state, id, front, source, destination, next, since, up, down] = tr.children;
  const kind = 'state ' + c.state;
  if (state.className !== kind) state.className = kind;
  set(state, c.state + (c.stalledSeconds ? ' ' + seconds(Math.max(1, Math.round(c.stalledSeconds))).replace('.0', '') : ''));
  set(id.firstElementChild, c.id);
  set(front, c.front);
  set(source, c.source || '');
  set(destination, c.destination);
  destination.title = c.destination + (c.resolved ? ' = ' + c.resolved : '');
  set(next, c.next || '');
  set(since, seconds(age(c.since)));
  set(up, rate(c.upBytesPerSecond));
  set(down, rate(c.downBytesPerSecond));
}

// One connection, hop by hop.

let detailed = null;

function showDetail(c) {
  detailed = c.id;
  drawDetail(c);
  $('detail').showModal();
}

function drawDetail(c) {
  set($('detail-title'), 'Connection ' + c.id);
  const hop = (text, more, stalled) => {
    const li = element('li', stalled ? 'stalled' : '');
    li.append(element('strong', '', text), element('br'), element('span', stalled ? 'bad' : 'soft', more));
    return li;
  };
  const stuck = c.stalledSeconds ? 'does not read since ' + seconds(c.stalledSeconds) : '';
  const hops = [
    hop(c.source || 'client', stuck && c.stalledBy === 'client' ? stuck : 'asked by ' + c.front, c.stalledBy === 'client'),
    hop(status.component + (status.id ? ' ' + status.id : ''), 'this process: ' + c.state, false),
  ];
  if (c.next) hops.push(hop(c.next, stuck && c.stalledBy === 'destination' ? stuck + ' (it, or what is behind it)' : 'carries it on', c.stalledBy === 'destination'));
  hops.push(hop(c.destination, stuck && c.stalledBy === 'destination' && !c.next ? stuck : c.resolved || 'destination', c.stalledBy === 'destination' && !c.next));
  $('hops').replaceChildren(...hops);
  $('facts').replaceChildren(...[
    ['Open for', seconds(age(c.since))], ['Sent', bytes(c.upBytes) + ', now ' + rate(c.upBytesPerSecond)], ['Received', bytes(c.downBytes) + ', now ' + rate(c.downBytesPerSecond)],
    ['Elsewhere', 'konnectivity status --filter ' + c.id],
  ].flatMap(([k, v]) => [element('dt', '', k), element('dd', '', v)]));
}

async function followDetail() {
  if (!$('detail').open) return;
  const page = await ask('connections?' + new URLSearchParams({ filter: detailed, limit: 10 }));
  const c = page.items.find(c => c.id === detailed);
  if (c) drawDetail(c);
  else set($('detail-title'), 'Connection ' + detailed + ' (ended)');
}

// Failures.

let newestFailure = '';

function showFailures(page) {
  $('no-failures').hidden = page.items.length > 0;
  const newest = page.items.length ? page.items[0].time + page.items[0].id : '';
  if (newest === newestFailure) return;
  newestFailure = newest;
  $('failures').replaceChildren(...page.items.map(f => {
    const li = element('li');
    const time = element('time', 'soft', clock(f.time));
    time.dateTime = f.time;
    const what = element('span', 'what');
    what.append(element('strong', '', f.destination), ' ' + f.cause + (f.next ? ' (by ' + f.next + ')' : '') + ' after ' + seconds(f.seconds) + ' ', element('span', 'soft', f.id));
    li.append(time, element('span', 'bad', f.failure.replaceAll('_', ' ')), what, element('span', 'hint', f.hint || ''));
    return li;
  }));
}

// The loop. It goes on whatever happens; a server that restarts is found again.

let turn = 0, lostAt = 0;

async function look() {
  const asked = [ask('status').then(showStatus), load(), followDetail()];
  if (turn % 2 === 0) asked.push(
    Promise.all(['client', 'server', 'agent'].map(role => ask('peers?sort=-rate&limit=' + shownPeers + '&role=' + role))).then(showPeers),
    ask('failures?limit=' + shownFailures).then(showFailures));
  if (turn % 6 === 0) asked.push(ask('history').then(showHistory));
  turn++;
  await Promise.all(asked);
}

async function loop() {
  if (!document.hidden) {
    try {
      await look();
      lostAt = 0;
      $('lost').hidden = true;
    } catch (error) {
      turn = 0;
      lostAt = lostAt || Date.now();
      set($('lost'), 'No answer since ' + clock(lostAt) + '. The figures below are old; trying again.');
      $('lost').hidden = false;
    }
  }
  setTimeout(loop, every);
}

makeTiles();
makeHeads();
$('scroll').addEventListener('scroll', () => {
  const [first, count] = visible();
  const missing = first < list.offset || Math.min(first + count, list.matched) > list.offset + list.items.length;
  if (missing) load().catch(() => {});
}, { passive: true });
let typing = 0;
$('filter').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => { list.filter = $('filter').value.trim(); restart(); }, 150);
});
$('state').addEventListener('change', () => { list.state = $('state').value; restart(); });
document.addEventListener('keydown', e => {
  if (e.key === '/' && !e.ctrlKey && !e.metaKey && !e.altKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && !$('detail').open) {
    e.preventDefault();
    $('filter').focus();
  }
});
loop();
