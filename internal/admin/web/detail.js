// One connection, hop by hop, in a dialog that follows it.

import { $, age, ask, bytes, element, plural, rate, seconds, set, whole } from './words.js';
import { about, title, worries } from './topology.js';

let followed = null; // the connection as last seen
let self = null;     // this process's status

export function knowSelf(status) { self = status; }

export function showDetail(c) {
  followed = c;
  drawDetail(c, {});
  $('detail').showModal();
  followDetail().catch(() => {});
}

// followDetail draws the connection anew, with what is known of its neighbours.
export async function followDetail() {
  if (!$('detail').open) return;
  const id = followed.id;
  const find = (filter, role) => filter ? ask('peers?' + new URLSearchParams({ filter, role, tenant: followed.tenant || '', limit: 20 })).then(page => page.items) : [];
  const [page, before, after] = await Promise.all([
    ask('connections?' + new URLSearchParams({ filter: id, limit: 100 })),
    find(followed.front === 'link' || followed.front === 'agent' ? followed.source : '', 'client,server'),
    find(followed.next?.replace(/^\S+ /, ''), 'server,agent'),
  ]);
  if (!$('detail').open || followed.id !== id) return;
  // An id may be on several connections: a client may give the same to many.
  const c = page.items.find(c => c.id === id && c.since === followed.since);
  if (!c) {
    set($('detail-state'), 'It has ended. Below is how it was last seen.');
    return;
  }
  followed = c;
  drawDetail(c, {
    before: before.find(p => p.remote === c.source),
    after: after.find(p => c.next === p.role + ' ' + p.id),
  });
}

function drawDetail(c, { before, after }) {
  set($('detail-title'), c.destination);
  const stuck = c.stalledSeconds ? 'does not read for ' + whole(c.stalledSeconds) : '';
  const slow = c.stalledBy;
  set($('detail-state'), stuck ? '▲ ' + (slow === 'client' ? 'The client’s side' : 'The destination’s side') + ' ' + stuck + '.'
    : c.resumingSeconds ? '↻ Its link was lost. It has waited for another for ' + whole(c.resumingSeconds) + '.' : 'It is ' + c.state + '.');
  $('detail-state').className = stuck || c.resumingSeconds ? 'bad' : 'soft';
  const hops = [
    hop(before ? title(before) : c.source || 'client', before ? words(before) : 'came in by ' + c.front, slow === 'client' && (before ? stuck + ': it, or its client' : stuck)),
    hop(self.component + (self.id ? ' ' + self.id : ''), 'this process'),
  ];
  if (c.next) hops.push(hop(c.next, after ? words(after) : '', slow === 'destination' && stuck + ': it, or what is behind it'));
  hops.push(hop(c.destination, c.resolved && !c.next ? 'as ' + c.resolved : c.next ? '' : 'dialed from here', slow === 'destination' && !c.next && stuck));
  $('hops').replaceChildren(...hops);
  $('facts').replaceChildren(...[
    ['Open for', seconds(age(c.since)) + ', since ' + new Date(c.since).toLocaleTimeString('en-GB')],
    ['↑ Up', bytes(c.upBytes) + ' in all, now ' + rate(c.upBytesPerSecond)],
    ['↓ Down', bytes(c.downBytes) + ' in all, now ' + rate(c.downBytesPerSecond)],
    ...(c.resumes ? [['Resumed', plural(c.resumes, 'time') + ' by another link']] : []),
    ...(c.tenant ? [['Tenant', c.tenant]] : []),
    ...(c.identity ? [['Client', c.identity.join(' ')]] : []),
    ['ID', c.id],
    ['On other hops', 'konnectivity status ADDRESS… --filter ' + c.id],
  ].flatMap(([k, v]) => [element('dt', '', k), element('dd', k === 'ID' || k === 'On other hops' ? 'code' : '', v)]));
}

const words = p => [...about(p), ...worries(p).map(w => '▲ ' + w)].join(' · ');

function hop(name, more, trouble) {
  const li = element('li', trouble ? 'stalled' : '');
  li.append(element('strong', '', name));
  if (more) li.append(element('span', 'soft', more));
  if (trouble) li.append(element('span', 'bad', '▲ ' + trouble));
  return li;
}
