// Who is on either side of this process.

import { scope } from './scope.js';
import { $, age, ask, bytes, element, number, plural, rate, seconds, set, whole } from './words.js';

const shown = 6; // of each list; the busiest

// What each program has on its left and on its right: a title for one and for
// many, the roles, and what it means that there is none.
const server = [
  [['client', 'clients', 'client', 'No client is linked. Old sidecars, and clients that use CONNECT, are below with kube-apiserver.'],
    ['frontend', 'frontends', 'frontend', 'No frontend has a connection: kube-apiserver, or a sidecar without a link.']],
  [['agent', 'agents', 'agent', '▲ No agent is connected, so nothing can be reached. Check that agents run, and what they log.', true]],
];
const agent = [
  [['server', 'servers', 'server', '▲ No server is connected. Check its address, and what this agent logs.', true]],
  [['destination', 'destinations', 'destination', 'No connection leads anywhere yet.']],
];
const sidecar = [
  [['client', 'clients', 'frontend', 'No client has a connection.']],
  [['server', 'servers', 'server', 'No server is connected. Links are made with the first connection; konnectivity check tells why one fails.'],
    ['bypass', 'bypasses', 'direct', '']],
];

const sides = ['left', 'right'];
let layout = null;

// showSelf draws the middle, and learns what the sides are.
export function showSelf(s) {
  layout = s.component === 'konnectivity-agent' ? agent : s.component === 'konnectivity-server' ? server : sidecar;
  set($('self'), s.component);
  set($('self-id'), s.id || '');
  set($('self-up'), '↑ ' + rate(s.rates.upBytesPerSecond));
  set($('self-down'), '↓ ' + rate(s.rates.downBytesPerSecond));
  const { open, stalled, resuming } = s.connections;
  const worry = [stalled ? number(stalled) + ' stalled' : '', resuming ? number(resuming) + ' resuming' : ''].filter(Boolean);
  $('self-more').className = worry.length ? 'bad' : 'soft';
  set($('self-more'), (worry.length ? '▲ ' + worry.join(' and ') + ' of ' : '') + plural(open, 'connection'));
  const full = Object.entries(s.buffers || {}).filter(([, b]) => b.limit > 0 && b.used > b.limit / 10)
    .map(([name, b]) => name + ' buffers ' + Math.round(100 * b.used / b.limit) + ' % full');
  set($('self-buffers'), full.join(', '));
  const gone = s.lastGone;
  $('gone').hidden = !gone;
  if (gone) set($('gone'), 'Last to leave: ' + gone.role + ' ' + gone.id + ', ' + whole(age(gone.time)) + ' ago. ' + gone.cause + '.');
}

// askPeers asks for both sides.
export async function askPeers() {
  if (!layout) return;
  const of = scope.tenant;
  const lists = layout.flat();
  const pages = await Promise.all(lists.map(([, , role]) => ask('peers?sort=-rate&limit=' + shown + '&role=' + role + '&tenant=' + encodeURIComponent(scope.tenant))));
  if (of !== scope.tenant) return;
  let at = 0;
  layout.forEach((groups, i) => $(sides[i]).replaceChildren(...groups.flatMap(g => group(g, pages[at++]))));
}

// group is a title and its nodes; nothing where there is nothing to say.
function group([one, many, role, none, bad], page) {
  const n = page.matched;
  if (n === 0 && !none) return [];
  const title = element('h3', '', n === 1 ? '1 ' + one : n ? number(n) + ' ' + many : many);
  if (n === 0) return [title, element('p', bad ? 'none bad' : 'none soft', none)];
  const list = element('ul');
  list.append(...page.items.map(node));
  const nodes = [title, list];
  if (n > page.items.length) nodes.push(element('p', 'more soft', 'and ' + number(n - page.items.length) + ' less busy'));
  return nodes;
}

function node(p) {
  const moving = p.upBytesPerSecond + p.downBytesPerSecond > 0;
  const li = element('li', 'node peer' + (p.stalled ? ' stalled' : moving ? ' flowing' : ''));
  const name = element('strong', '', title(p));
  name.title = facts(p);
  li.append(name, element('span', 'up rate', '↑ ' + rate(p.upBytesPerSecond)), element('span', 'down rate', '↓ ' + rate(p.downBytesPerSecond)));
  const more = element('p', 'soft', about(p).join(' · '));
  for (const word of worries(p)) more.append(more.textContent ? ' · ' : '', element('span', 'bad', '▲ ' + word));
  li.append(more);
  return li;
}

export const title = p => p.role === 'client' && p.software ? p.software.split('/')[0].replace(/^konnectivity-/, '') + ' ' + p.remote : p.id || p.remote;

const facts = p => [p.role === 'client' ? '' : p.id, p.remote, p.software, p.identifiers, p.windowBytes ? 'window ' + bytes(p.windowBytes) : ''].filter(Boolean).join(', ');

const protocols = new Map(Object.entries({ grpc: 'gRPC', connect: 'CONNECT', forward: 'plain HTTP', socks5: 'SOCKS5', upgrade: 'HTTP upgrade' }));

export const about = p => [
  p.tenant && !scope.shown ? 'tenant ' + p.tenant : '', protocols.get(p.protocol) || p.protocol,
  plural(p.streams, 'connection'), p.roundTripSeconds ? seconds(p.roundTripSeconds) + ' round trip' : '', p.pendingDials ? plural(p.pendingDials, 'pending dial') : '',
].filter(Boolean);

export const worries = p => [
  p.stalled ? number(p.stalled) + ' stalled' : '', p.draining ? 'draining' : '', p.silentSeconds ? 'silent for ' + whole(p.silentSeconds) : '',
].filter(Boolean);
