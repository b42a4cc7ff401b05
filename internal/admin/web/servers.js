// The servers that forward to one another, as the others have told this one.

import { $, ask, age, element, number, plural, seconds, set } from './words.js';

const shown = 64; // as many as there can be links

let busy = false;

// loadServers shows the servers, if there are several. It may take seconds, so
// nobody waits for it.
export async function loadServers() {
  if (busy) return;
  busy = true;
  try {
    showServers(await ask('servers?limit=' + shown));
  } catch {
    // the loop tells of a server that is away
  } finally { busy = false; }
}

function showServers(page) {
  $('servers').hidden = page.total < 2;
  const all = page.items.map(server).sort((a, b) => b.ill - a.ill); // those that are ill first
  const ill = all.filter(s => s.ill).length;
  set($('servers-count'), plural(page.total, 'server') + (ill ? ', ' + number(ill) + ' with problems' : ''));
  $('servers-list').replaceChildren(...all.map(s => s.node));
}

function server(s) {
  const words = troubles(s);
  const li = element('li', 'node server' + (words.length ? ' stalled' : ''));
  li.append(element('span', 'pill ' + (words.length ? 'bad' : 'good'), s.error ? '✕ no answer' : !s.status.ready ? '✕ not ready' : words.length ? '▲ ready' : '✓ ready'),
    element('strong', '', s.id || s.remote), element('p', 'soft', facts(s).join(' · ')), ...words.map(word => element('p', 'bad', '▲ ' + word)));
  return { ill: words.length ? 1 : 0, node: li };
}

const facts = ({ id, remote, status: s }) => [
  remote ? id ? remote : '' : 'this server',
  ...s ? [s.build.version, 'up ' + seconds(age(s.started)), plural(s.peers.agent || 0, 'agent'), plural(s.peers.client || 0, 'client'), plural(s.connections.open, 'connection')] : [],
].filter(Boolean);

const troubles = ({ error, status: s }) => s ? [
  s.ready ? '' : s.reason || 'it does not say why it is not ready',
  ...(s.unlinked || []).slice(0, 1).map(u => 'no link to ' + u.address + (s.unlinked.length > 1 ? ' and ' + number(s.unlinked.length - 1) + ' more' : '') + ': ' + u.cause),
  s.auditError ? 'audit records cannot be written: ' + s.auditError : '',
  s.policyError ? 'the policy file cannot be used, and the rules before hold: ' + s.policyError : '',
  s.connections.stalled ? plural(s.connections.stalled, 'connection') + ' stalled' : '',
].filter(Boolean) : [error];
