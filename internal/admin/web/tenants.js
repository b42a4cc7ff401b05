// The tenants of a server of many: an overview of all, and one.

import { $, bytes, element, measured, number, plural, rate, set, setClass, setTitle } from './words.js';
import { makeList } from './list.js';
import { choose, scope } from './scope.js';

const columns = [
  ['state', 'State'], ['name', 'Tenant'], ['agents', 'Agents', 'num'], ['clients', 'Clients', 'num'], ['connections', 'Connections', 'num'],
  ['up', '↑ Up', 'num'], ['down', '↓ Down', 'num'], ['wrong', 'What is wrong'],
];

// What a tenant may be, the worst first, as the API counts and selects them.
const conditions = ['missing', 'broken', 'stale', 'not-ready', 'stalled', 'ready'];
const words = { 'not-ready': 'not ready' };

const named = 3; // servers that have the same trouble

let list = null, condition = '';

// makeTenants sets the overview up, once it is known that there are tenants.
export function makeTenants() {
  if (list) return;
  for (const name of ['', ...conditions]) {
    const button = element('button', 'chip ' + name);
    button.type = 'button';
    button.dataset.condition = name;
    button.addEventListener('click', () => { condition = name; list.restart(); });
    $('tenants-conditions').append(button);
  }
  list = makeList('tenants-', {
    columns, lead: 'name', sort: '-state', largeFirst: ['state', 'agents', 'clients', 'connections', 'up', 'down'],
    resource: 'tenants', params: () => ({ state: condition, servers: scope.servers }), fill, show, open: t => choose(t.name),
  });
}

export const loadTenants = () => list && !$('tenants').hidden ? list.load() : undefined;

function show(list) {
  const states = list.page.conditions;
  for (const button of $('tenants-conditions').children) {
    const name = button.dataset.condition, n = name ? states[name] || 0 : list.total;
    if (button.hidden = name === 'missing' && !list.page.servers) continue; // of one server, none can be
    set(button, (name ? words[name] || name : 'all') + ' ' + number(n));
    button.classList.toggle('none-such', n === 0);
    button.setAttribute('aria-pressed', String(name === condition));
  }
  set($('tenants-count'), list.matched === list.total ? '' : plural(list.matched, 'tenant') + ' of ' + number(list.total));
  set($('tenants-empty'), list.total ? 'No tenant matches.' : 'No tenant is there: its folder has none.');
}

function fill(tr, t, page) {
  tr.dataset.name = t.name;
  setClass(tr, t.condition);
  const { state, name, agents, clients, connections, up, down, wrong } = tr.cellOf;
  set(state, words[t.condition] || t.condition);
  set(name.firstElementChild, t.name);
  setTitle(name, [...t.serverNames, ...(t.listen || [])].join(', '));
  set(agents, number(t.agents));
  set(clients, number(t.clients));
  set(connections, number(t.connections.open));
  measured(up, rate(t.upBytesPerSecond));
  measured(down, rate(t.downBytesPerSecond));
  const trouble = troubleOf(t, page);
  set(wrong, trouble);
  setTitle(wrong, trouble);
}

// troubleOf is what is wrong, and where, unless it is so on all servers.
function troubleOf(t, page) {
  const on = t.condition !== 'ready' && (t.on || []).length < page.servers ? 'on ' + t.on.slice(0, named).join(', ') + (t.on.length > named ? ' and ' + number(t.on.length - named) + ' more' : '') + ': ' : '';
  return on + reason(t);
}

const reason = t => t.error || (t.ready ? t.connections.stalled ? plural(t.connections.stalled, 'connection') + ' stalled' : '' : t.reason || '');

// showTenant shows what is known of the one tenant that the page is about: its figures
// are of this server, but what is wrong is so on any.
export function showTenant(page, everywhere) {
  const [t] = page.items;
  if (!t) return;
  set($('tenant-title'), 'Tenant ' + t.name);
  showTrouble(everywhere.items[0] || t, everywhere);
  const facts = [
    ['Asked for as', [...t.serverNames, ...(t.listen || [])].join(', ')],
    ['Agents', number(t.agents) + (t.agentsRefused ? ', and ' + number(t.agentsRefused) + ' refused' : '')],
    ['Clients', number(t.clients)],
    ['Connections', number(t.connections.open) + ' open, ' + number(t.connections.total) + ' so far'],
    ['Dials', number(t.dials.total) + (t.dials.failed ? ', of which ' + number(t.dials.failed) + ' failed' : '')
      + (t.dials.failures.bound ? ' (' + number(t.dials.failures.bound) + ' by its bounds)' : '')],
    ['Carried', '↑ ' + bytes(t.upBytes) + ', ↓ ' + bytes(t.downBytes)],
  ];
  const dl = $('tenant-facts');
  if (dl.children.length === 0) dl.append(...facts.map(([name]) => { const div = element('div'); div.append(element('dt', '', name), element('dd')); return div; }));
  facts.forEach(([, text], i) => set(dl.children[i].lastElementChild, text));
}

function showTrouble(t, page) {
  const well = t.condition === 'ready', trouble = troubleOf(t, page);
  setClass($('tenant-state'), 'pill ' + (well ? 'good' : 'bad'));
  set($('tenant-state'), (well ? '✓ ' : '▲ ') + (words[t.condition] || t.condition));
  $('tenant-wrong').hidden = !trouble;
  set($('tenant-wrong'), trouble);
}
