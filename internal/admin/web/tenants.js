// The tenants of a server of many: an overview of all, and one.

import { $, bytes, element, measured, number, plural, rate, set, setClass, setTitle } from './words.js';
import { makeList } from './list.js';
import { choose } from './scope.js';

const columns = [
  ['state', 'State'], ['name', 'Tenant'], ['agents', 'Agents', 'num'], ['clients', 'Sidecars', 'num'], ['connections', 'Connections', 'num'],
  ['up', '↑ Up', 'num'], ['down', '↓ Down', 'num'], ['wrong', 'What is wrong'],
];

// What a tenant may be, the worst first, as the API counts and selects them.
const conditions = [['broken', '✕'], ['stale', '▲'], ['not-ready', '▲'], ['stalled', '▲'], ['ready', '●']];
const words = { 'not-ready': 'not ready' };

let list = null, condition = '';

// makeTenants sets the overview up, once it is known that there are tenants.
export function makeTenants() {
  if (list) return;
  for (const [name] of [[''], ...conditions]) {
    const button = element('button', 'chip ' + name);
    button.type = 'button';
    button.dataset.condition = name;
    button.addEventListener('click', () => { condition = name; list.restart(); });
    $('tenants-conditions').append(button);
  }
  list = makeList('tenants-', {
    columns, lead: 'name', sort: '-state', largeFirst: ['state', 'agents', 'clients', 'connections', 'up', 'down'],
    resource: 'tenants', params: () => ({ state: condition }), fill, show, open: t => choose(t.name),
  });
}

export const loadTenants = () => list && !$('tenants').hidden ? list.load() : undefined;

function show(list) {
  const states = list.page.conditions;
  for (const button of $('tenants-conditions').children) {
    const name = button.dataset.condition, n = name ? states[name] || 0 : list.total;
    set(button, (name ? words[name] || name : 'all') + ' ' + number(n));
    button.classList.toggle('none-such', n === 0);
    button.setAttribute('aria-pressed', String(name === condition));
  }
  set($('tenants-count'), list.matched === list.total ? '' : plural(list.matched, 'tenant') + ' of ' + number(list.total));
  set($('tenants-empty'), list.total ? 'No tenant matches.' : 'No tenant is there: its folder has none.');
}

function fill(tr, t) {
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
  set(wrong, trouble(t));
  setTitle(wrong, trouble(t));
}

const trouble = t => t.error || (t.ready ? t.connections.stalled ? plural(t.connections.stalled, 'connection') + ' stalled' : '' : t.reason || '');

// showTenant shows what is known of the one tenant that the page is about.
export function showTenant(page) {
  const [t] = page.items;
  if (!t) return;
  set($('tenant-title'), 'Tenant ' + t.name);
  setClass($('tenant-state'), 'pill ' + (t.condition === 'ready' ? 'good' : 'bad'));
  set($('tenant-state'), (t.condition === 'ready' ? '✓ ' : '▲ ') + (words[t.condition] || t.condition));
  $('tenant-wrong').hidden = !trouble(t);
  set($('tenant-wrong'), trouble(t));
  const facts = [
    ['Asked for as', [...t.serverNames, ...(t.listen || [])].join(', ')],
    ['Agents', number(t.agents) + (t.agentsRefused ? ', and ' + number(t.agentsRefused) + ' refused' : '')],
    ['Sidecars', number(t.clients)],
    ['Connections', number(t.connections.open) + ' open, ' + number(t.connections.total) + ' so far'],
    ['Dials', number(t.dials.total) + (t.dials.failed ? ', of which ' + number(t.dials.failed) + ' failed' : '')
      + (t.dials.failures.bound ? ' (' + number(t.dials.failures.bound) + ' by its bounds)' : '')],
    ['Carried', '↑ ' + bytes(t.upBytes) + ', ↓ ' + bytes(t.downBytes)],
  ];
  const dl = $('tenant-facts');
  if (dl.children.length === 0) dl.append(...facts.map(([name]) => { const div = element('div'); div.append(element('dt', '', name), element('dd')); return div; }));
  facts.forEach(([, text], i) => set(dl.children[i].lastElementChild, text));
}
