// The table of connections: a window of a list that the server sorts and
// filters as a whole.

import { $, age, ask, element, measured, number, plural, rate, set, setClass, setTitle, whole } from './words.js';

const ahead = 40; // rows that are loaded beyond what is seen
const columns = [
  ['state', 'State'], ['destination', 'Destination'], ['source', 'Source'], ['front', 'Front'], ['next', 'Next hop'],
  ['since', 'Age', 'num'], ['up', '↑ Up', 'num'], ['down', '↓ Down', 'num'], ['id', 'ID'],
];
const list = { sort: '-state', filter: '', state: '', offset: 0, items: [], matched: 0, total: 0, generation: 0, busy: false, again: false, cursor: 0 };

const small = matchMedia('(max-width: 760px)');
const rowHeight = () => small.matches ? 52 : 32; // as in the style sheet

// makeTable sets all up; open is called with a connection that is chosen.
export function makeTable(open) {
  for (const [key, name, kind] of columns) $('heads').append(head(key, name, kind));
  markSort();
  const rows = $('rows');
  rows.append(gap(), gap());
  rows.addEventListener('click', e => { const tr = e.target.closest('tr'); if (tr?.connection) open(tr.connection); });
  rows.addEventListener('keydown', move);
  rows.addEventListener('focusin', e => { list.cursor = indexOf(e.target.closest('tr')); markCursor(); });
  $('scroll').addEventListener('scroll', () => {
    const [first, count] = visible();
    if (first < list.offset || Math.min(first + count, list.matched) > list.offset + list.items.length) load().catch(() => {});
  }, { passive: true });
  small.addEventListener('change', () => draw());
  let typing = 0;
  $('filter').addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => { list.filter = $('filter').value.trim(); restart(); }, 150);
  });
  $('state').addEventListener('change', () => { list.state = $('state').value; restart(); });
}

function head(key, name, kind) {
  const th = element('th', 'c-' + key + (kind ? ' ' + kind : ''));
  th.scope = 'col';
  th.setAttribute('role', 'columnheader');
  th.dataset.key = key;
  const button = element('button', '', name);
  button.type = 'button';
  button.addEventListener('click', () => {
    const first = ['state', 'up', 'down'].includes(key) ? '-' : '';
    list.sort = list.sort === first + key ? (first ? key : '-' + key) : first + key;
    markSort();
    restart();
  });
  th.append(button);
  return th;
}

function markSort() {
  for (const th of $('heads').children) {
    const own = list.sort.replace('-', '') === th.dataset.key;
    // Age counts against since.
    if (own) th.setAttribute('aria-sort', list.sort.startsWith('-') !== (th.dataset.key === 'since') ? 'descending' : 'ascending');
    else th.removeAttribute('aria-sort');
  }
}

function restart() {
  list.generation++;
  list.cursor = 0;
  $('scroll').scrollTop = 0;
  load().catch(() => {}); // the loop tells of a server that is away
}

function visible() {
  const box = $('scroll');
  return [Math.max(0, Math.floor(box.scrollTop / rowHeight())), Math.ceil(box.clientHeight / rowHeight()) + 1];
}

// load asks for what is seen, and again if that has changed meanwhile.
export async function load() {
  if (list.busy) { list.again = true; return; }
  list.busy = true;
  try {
    do {
      list.again = false;
      const generation = list.generation;
      const [first, count] = visible();
      const offset = Math.max(0, first - ahead);
      const page = await ask('connections?' + new URLSearchParams({ offset, limit: count + 2 * ahead, sort: list.sort, filter: list.filter, state: list.state }));
      if (generation === list.generation) {
        Object.assign(list, { offset, items: page.items, matched: page.matched, total: page.total });
        draw();
      } else list.again = true;
    } while (list.again);
  } finally { list.busy = false; }
}

// draw shows the loaded rows between two gaps that stand for all others.
function draw() {
  const body = $('rows'), last = body.lastElementChild;
  body.firstElementChild.firstElementChild.style.height = list.offset * rowHeight() + 'px';
  let row = body.firstElementChild.nextElementSibling;
  list.items.forEach((c, i) => {
    if (row === last) { body.insertBefore(makeRow(), last); row = last.previousElementSibling; }
    fill(row, c, list.offset + i);
    row = row.nextElementSibling;
  });
  while (row !== last) { const next = row.nextElementSibling; row.remove(); row = next; }
  last.firstElementChild.style.height = Math.max(0, list.matched - list.offset - list.items.length) * rowHeight() + 'px';
  $('table').setAttribute('aria-rowcount', list.matched + 1);
  set($('count'), list.matched === list.total ? number(list.total) + ' open' : number(list.matched) + ' of ' + number(list.total) + ' open');
  $('empty').hidden = list.matched > 0;
  set($('empty'), list.total ? 'No connection matches. ' + plural(list.total, 'other') + (list.total === 1 ? ' is' : ' are') + ' open.' : 'No connection is open.');
  if (body.contains(document.activeElement) && indexOf(document.activeElement.closest('tr')) !== list.cursor) buttonAt(list.cursor)?.focus({ preventScroll: true });
  markCursor();
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
  tr.setAttribute('role', 'row');
  tr.cellOf = {}; // by the column's key
  for (const [key, , kind] of columns) {
    const td = tr.cellOf[key] = element('td', 'c-' + key + (kind ? ' ' + kind : ''));
    td.setAttribute('role', 'cell');
    if (key === 'destination') {
      const button = element('button');
      button.type = 'button';
      td.append(button);
    }
    tr.append(td);
  }
  return tr;
}

function fill(tr, c, index) {
  tr.connection = c;
  tr.dataset.id = c.id;
  tr.setAttribute('aria-rowindex', index + 2);
  setClass(tr, c.state + (c.stalledBy ? ' by-' + c.stalledBy : ''));
  const { state, destination, source, front, next, since, up, down, id } = tr.cellOf;
  const lasts = c.stalledSeconds || c.resumingSeconds;
  set(state, c.state + (lasts ? ' ' + whole(Math.max(1, lasts)) : ''));
  setTitle(state, c.stalledBy ? 'The ' + (c.stalledBy === 'client' ? 'client' : c.next ? 'next hop, or what is behind it,' : 'destination') + ' does not read'
    : c.resumingSeconds ? 'Its link was lost, and it waits for another' : c.resumes ? 'Its link was lost ' + plural(c.resumes, 'time') + ', and it went on by another' : '');
  set(destination.firstElementChild, c.destination);
  setTitle(destination, c.destination + (c.resolved ? ' = ' + c.resolved : ''));
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

// The keyboard: one row is in the tab order, and arrows go from row to row.

const indexOf = tr => tr ? Number(tr.getAttribute('aria-rowindex')) - 2 : 0;

const buttonAt = index => document.querySelector('#rows tr[aria-rowindex="' + (index + 2) + '"] button');

function markCursor() {
  const held = Math.min(Math.max(list.cursor, list.offset), list.offset + list.items.length - 1);
  for (const button of $('rows').querySelectorAll('button')) button.tabIndex = indexOf(button.closest('tr')) === held ? 0 : -1;
}

async function move(e) {
  const page = visible()[1] - 3;
  const to = { ArrowDown: list.cursor + 1, ArrowUp: list.cursor - 1, PageDown: list.cursor + page, PageUp: list.cursor - page, Home: 0, End: list.matched - 1 }[e.key];
  if (to === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  list.cursor = Math.min(Math.max(to, 0), list.matched - 1);
  const box = $('scroll'), top = list.cursor * rowHeight(), seen = box.clientHeight - $('heads').offsetHeight - rowHeight();
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top > box.scrollTop + seen) box.scrollTop = top - seen;
  if (!buttonAt(list.cursor)) await load().catch(() => {});
  const now = document.activeElement; // elsewhere, if somebody was quicker
  if (now === document.body || $('rows').contains(now)) buttonAt(list.cursor)?.focus({ preventScroll: true });
}
