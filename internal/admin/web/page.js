// The status page. It asks the API of the process that serves it, nothing else,
// and writes text only by textContent.

import { $, age, ask, clock, number, plural, seconds, set, setClock, whole } from './words.js';
import { makeTiles, showHistory, showOpen } from './tiles.js';
import { askPeers, showSelf } from './topology.js';
import { load, makeTable } from './connections.js';
import { followDetail, knowSelf, showDetail } from './detail.js';
import { showFailures } from './failures.js';

const every = 700;        // ms between looks; with the server's own this shows a stall within 2 s
const shownFailures = 50;

function showStatus(s) {
  setClock(s.now);
  knowSelf(s);
  document.title = (s.connections.stalled ? '▲ ' + number(s.connections.stalled) + ' stalled · ' : s.ready ? '' : '✕ ') + s.component + (s.id ? ' ' + s.id : '');
  set($('component'), s.component);
  set($('about'), [s.id, s.build.version, 'up ' + seconds(age(s.started)), s.serverCount > 1 ? plural(s.serverCount, 'server') : '',
    ...Object.entries(s.strategies || {}).map(([name, n]) => 'strategy ' + name + ': ' + plural(n, 'agent'))].filter(Boolean).join(' · '));
  const ready = $('ready');
  ready.className = 'pill ' + (s.ready ? 'good' : 'bad');
  set(ready, s.ready ? '✓ ready' : '✕ not ready');
  $('reason').hidden = s.ready;
  set($('reason'), s.ready ? '' : 'Not ready: ' + (s.reason || 'it does not say why') + '.');
  showOpen(s.connections);
  showSelf(s);
}

// The loop goes on whatever happens; a server that restarts is found again.

let turn = 0, lostAt = 0;

async function look() {
  const asked = [ask('status').then(showStatus), load(), followDetail()];
  if (turn % 6 === 0) asked.push(ask('history').then(showHistory));
  if (turn % 2 === 0) asked.push(ask('failures?limit=' + shownFailures).then(showFailures));
  await Promise.all(asked);
  if (turn % 2 === 0) await askPeers();
  turn++;
}

function showLost() {
  turn = 0;
  lostAt = lostAt || Date.now();
  document.body.dataset.state = 'lost';
  $('ready').className = 'pill bad';
  set($('ready'), '✕ no answer');
  set($('lost'), 'No answer since ' + clock(lostAt) + ' (for ' + whole((Date.now() - lostAt) / 1000) + '). What is below is old; this page goes on trying.');
  $('lost').hidden = false;
  document.title = '✕ no answer · ' + $('component').textContent;
}

function showFound() {
  lostAt = 0;
  document.body.dataset.state = 'live';
  $('lost').hidden = true;
}

async function loop() {
  if (!document.hidden) {
    try {
      await look();
      showFound();
    } catch { showLost(); }
  }
  setTimeout(loop, every);
}

makeTiles();
makeTable(showDetail);
document.addEventListener('keydown', e => {
  if (e.key === '/' && !e.ctrlKey && !e.metaKey && !e.altKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && !$('detail').open) {
    e.preventDefault();
    $('filter').focus();
  }
});
loop();
