// The table of connections.

import { $, age, measured, number, plural, rate, set, setClass, setTitle, whole } from './words.js';
import { makeList } from './list.js';
import { scope } from './scope.js';

const columns = [
  ['state', 'State'], ['destination', 'Destination'], ['tenant', 'Tenant'], ['source', 'Source'], ['front', 'Front'], ['next', 'Next hop'],
  ['since', 'Age', 'num'], ['up', '↑ Up', 'num'], ['down', '↓ Down', 'num'], ['id', 'ID'],
];

// makeTable sets all up; open is called with a connection that is chosen.
export function makeTable(open) {
  const list = makeList('', {
    columns, lead: 'destination', sort: '-state', largeFirst: ['state', 'up', 'down'], against: ['since'],
    resource: 'connections', params: () => ({ state: $('state').value, tenant: scope.tenant }), fill, show, open,
  });
  $('state').addEventListener('change', list.restart);
  return list;
}

function show(list) {
  // Of one tenant, the others are not worth a word.
  const all = scope.tenant && !list.filter && !$('state').value ? list.matched : list.total;
  set($('count'), list.matched === all ? number(all) + ' open' : number(list.matched) + ' of ' + number(all) + ' open');
  const others = all - list.matched;
  set($('empty'), others ? 'No connection matches. ' + plural(others, 'other') + (others === 1 ? ' is' : ' are') + ' open.' : 'No connection is open.');
}

function fill(tr, c) {
  tr.dataset.id = c.id;
  setClass(tr, c.state + (c.stalledBy ? ' by-' + c.stalledBy : ''));
  const { state, destination, tenant, source, front, next, since, up, down, id } = tr.cellOf;
  const lasts = c.stalledSeconds || c.resumingSeconds;
  set(state, c.state + (lasts ? ' ' + whole(Math.max(1, lasts)) : ''));
  setTitle(state, c.stalledBy ? 'The ' + (c.stalledBy === 'client' ? 'client' : c.next ? 'next hop, or what is behind it,' : 'destination') + ' does not read'
    : c.resumingSeconds ? 'Its link was lost, and it waits for another' : c.resumes ? 'Its link was lost ' + plural(c.resumes, 'time') + ', and it went on by another' : '');
  set(destination.firstElementChild, c.destination);
  setTitle(destination, c.destination + (c.resolved ? ' = ' + c.resolved : ''));
  set(tenant, c.tenant || '–');
  setTitle(tenant, c.tenant || '');
  set(source, c.source || '–');
  setTitle(source, c.source || '');
  set(front, c.front);
  set(next, c.next || '–');
  setTitle(next, c.next || '');
  measured(since, whole(age(c.since)));
  measured(up, rate(c.upBytesPerSecond));
  measured(down, rate(c.downBytesPerSecond));
  set(id, c.id);
  setTitle(id, c.id);
}
