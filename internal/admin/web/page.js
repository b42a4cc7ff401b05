// The status page. It asks the API of the process that serves it, nothing else,
// and writes text only by textContent.

import { $, age, ask, clock, number, plural, seconds, set, setClock, whole } from './words.js';
import { forgetHistory, makeTiles, remember, showHistory, showOpen } from './tiles.js';
import { askPeers, showSelf } from './topology.js';
import { makeTable } from './connections.js';
import { followDetail, knowSelf, showDetail } from './detail.js';
import { showFailures } from './failures.js';
import { choose, scope, watchScope } from './scope.js';
import { loadServers } from './servers.js';
import { loadTenants, makeTenants, showTenant } from './tenants.js';

const every = 700;        // ms between looks; with the server's own this shows a stall within 2 s
const shownFailures = 50;

// show fits the page to what it is about: all of a process, all of a server of
// many, or one tenant, whose reader cannot go back to all.
let view = '';

function show(s) {
  scope.shown = s.tenant || '';
  if (!s.tenant) scope.servers = s.component === 'konnectivity-server' && s.peers.server !== undefined ? 'all' : '';
  const now = s.tenant ? 'tenant' : s.tenants ? 'many' : 'process';
  if (now === 'many') makeTenants();
  if (now === view) return;
  view = document.body.dataset.view = now;
  $('tenants').hidden = now !== 'many';
  $('tenant').hidden = now !== 'tenant';
  $('tenant-all').hidden = !scope.tenant;
  set($('overview-title'), now === 'tenant' ? 'Since this page was opened' : 'Last 15 minutes');
}

function showStatus(s) {
  setClock(s.now);
  knowSelf(s);
  show(s);
  if (s.tenant) remember(s);
  document.title = (s.tenant ? s.tenant + ' · ' : '') + (s.connections.stalled ? '▲ ' + number(s.connections.stalled) + ' stalled · ' : s.ready ? '' : '✕ ') + s.component + (s.id ? ' ' + s.id : '');
  set($('component'), s.component + (s.tenant ? ' · ' + s.tenant : ''));
  set($('about'), [s.id, s.build.version, 'up ' + seconds(age(s.started)), s.serverCount > 1 ? plural(s.serverCount, 'server') : '',
    ...Object.entries(s.strategies || {}).map(([name, n]) => 'strategy ' + name + ': ' + plural(n, 'agent'))].filter(Boolean).join(' · '));
  const ready = $('ready');
  ready.className = 'pill ' + (s.ready ? 'good' : 'bad');
  set(ready, s.ready ? '✓ ready' : '✕ not ready');
  const reason = [s.ready ? '' : 'Not ready: ' + (s.reason || 'it does not say why') + '.',
    s.auditError ? 'Audit records cannot be written: ' + s.auditError + '.' : '',
    s.policyError ? 'The policy file cannot be used, and the rules before hold: ' + s.policyError + '.' : ''].filter(Boolean).join(' ');
  $('reason').hidden = !reason;
  set($('reason'), reason);
  showOpen(s.connections);
  showSelf(s);
}

// The loop goes on whatever happens; a server that restarts is found again.

let turn = 0, lostAt = 0;

async function look() {
  const of = scope.tenant, tenant = encodeURIComponent(of);
  const still = f => answer => { if (of === scope.tenant) f(answer); }; // another may be shown by now
  const asked = [ask('status?tenant=' + tenant).then(still(showStatus)), table.load(), followDetail()];
  quietly(loadTenants()); // and so all else that other servers may hold up
  if (turn % 3 === 0 && scope.servers && view !== 'tenant') loadServers();
  if (turn % 6 === 0 && view !== 'tenant') asked.push(ask('history').then(still(h => { if (view !== 'tenant') showHistory(h); })));
  if (turn % 2 === 0) asked.push(ask('failures?limit=' + shownFailures + '&tenant=' + tenant).then(still(showFailures)));
  if (turn % 2 === 0 && view === 'tenant') quietly(Promise.all(['', 'all'].map(servers => ask('tenants?tenant=' + tenant + '&servers=' + servers))).then(still(pages => showTenant(...pages))));
  await Promise.all(asked);
  if (turn % 2 === 0) await askPeers();
  turn++;
}

// quietly leaves it to the status to tell of a server that is away.
const quietly = asked => asked?.catch(() => {});

// anew shows another tenant, or all, from the beginning.
function anew() {
  turn = 0;
  forgetHistory();
  table.restart();
  scrollTo(0, 0);
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
    } catch (e) {
      if (e.status === 404 && scope.tenant) choose(''); // it was removed
      else showLost();
    }
  }
  setTimeout(loop, every);
}

makeTiles();
const table = makeTable(showDetail);
watchScope(anew);
document.addEventListener('keydown', e => {
  if (e.key === '/' && !e.ctrlKey && !e.metaKey && !e.altKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && !$('detail').open) {
    e.preventDefault();
    $(view === 'many' ? 'tenants-filter' : 'filter').focus();
  }
});
loop();
