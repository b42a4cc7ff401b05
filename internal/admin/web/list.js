// A table that is a window of a list, which the server sorts and filters as a
// whole.

import { $, ask, element, set } from './words.js';

const ahead = 40; // rows that are loaded beyond what is seen

const small = matchMedia('(max-width: 760px)');
const rowHeight = () => small.matches ? 52 : 32; // as in the style sheet

// makeList puts a table where the element scroll is. Its ids, like those of the elements
// around it, begin with the given prefix.
// o has:
//   columns    of [key, name, kind], of which lead has the button that opens a row
//   sort       the order at first; largeFirst are keys that are sorted so first
//   against    keys whose figure falls where the key grows
//   resource   of the API, and params() beside those of every list
//   fill       (row, item, page) shows an item of the API's answer
//   show       (list) tells how many there are
//   open       is called with an item that is chosen
export function makeList(prefix, o) {
  const at = name => $(prefix + name);
  const list = { sort: o.sort, filter: at('filter').value.trim(), offset: 0, items: [], matched: 0, total: 0, generation: 0, busy: false, again: false, cursor: 0 };
  const largeFirst = o.largeFirst || [], against = o.against || [];

  function head([key, name, kind]) {
    const th = element('th', 'c-' + key + (kind ? ' ' + kind : ''));
    th.scope = 'col';
    th.setAttribute('role', 'columnheader');
    th.dataset.key = key;
    const button = element('button', '', name);
    button.type = 'button';
    button.addEventListener('click', () => {
      const first = largeFirst.includes(key) ? '-' : '';
      list.sort = list.sort === first + key ? (first ? key : '-' + key) : first + key;
      markSort();
      restart();
    });
    th.append(button);
    return th;
  }

  function markSort() {
    for (const th of at('heads').children) {
      const own = list.sort.replace('-', '') === th.dataset.key;
      if (own) th.setAttribute('aria-sort', list.sort.startsWith('-') !== against.includes(th.dataset.key) ? 'descending' : 'ascending');
      else th.removeAttribute('aria-sort');
    }
  }

  // restart shows another list from its beginning.
  function restart() {
    list.generation++;
    list.cursor = 0;
    list.filter = at('filter').value.trim(); // not before: what is seen belongs to the old one
    at('scroll').scrollTop = 0;
    load().catch(() => {}); // the loop tells of a server that is away
  }

  function visible() {
    const box = at('scroll');
    return [Math.max(0, Math.floor(box.scrollTop / rowHeight())), Math.ceil(box.clientHeight / rowHeight()) + 1];
  }

  // load asks for what is seen, and again if that has changed meanwhile.
  async function load() {
    if (list.busy) { list.again = true; return; }
    list.busy = true;
    try {
      do {
        list.again = false;
        const generation = list.generation;
        const [first, count] = visible();
        const offset = Math.max(0, first - ahead);
        const page = await ask(o.resource + '?' + new URLSearchParams({ offset, limit: count + 2 * ahead, sort: list.sort, filter: list.filter, ...o.params() }));
        if (generation === list.generation) {
          Object.assign(list, { offset, page, items: page.items, matched: page.matched, total: page.total });
          draw();
        } else list.again = true;
      } while (list.again);
    } finally { list.busy = false; }
  }

  // draw shows the loaded rows between two gaps that stand for all others.
  function draw() {
    const body = at('rows'), last = body.lastElementChild;
    body.firstElementChild.firstElementChild.style.height = list.offset * rowHeight() + 'px';
    let row = body.firstElementChild.nextElementSibling;
    list.items.forEach((item, i) => {
      if (row === last) { body.insertBefore(makeRow(), last); row = last.previousElementSibling; }
      row.item = item;
      row.setAttribute('aria-rowindex', list.offset + i + 2);
      o.fill(row, item, list.page);
      row = row.nextElementSibling;
    });
    while (row !== last) { const next = row.nextElementSibling; row.remove(); row = next; }
    last.firstElementChild.style.height = Math.max(0, list.matched - list.offset - list.items.length) * rowHeight() + 'px';
    at('table').setAttribute('aria-rowcount', list.matched + 1);
    at('empty').hidden = list.matched > 0;
    o.show(list);
    if (body.contains(document.activeElement) && indexOf(document.activeElement.closest('tr')) !== list.cursor) buttonAt(list.cursor)?.focus({ preventScroll: true });
    markCursor();
  }

  function gap() {
    const tr = element('tr', 'gap');
    tr.setAttribute('aria-hidden', 'true');
    tr.append(element('td'));
    return tr;
  }

  function makeRow() {
    const tr = element('tr');
    tr.setAttribute('role', 'row');
    tr.cellOf = {}; // by the column's key
    for (const [key, , kind] of o.columns) {
      const td = tr.cellOf[key] = element('td', 'c-' + key + (kind ? ' ' + kind : ''));
      td.setAttribute('role', 'cell');
      if (key === o.lead) {
        const button = element('button');
        button.type = 'button';
        td.append(button);
      }
      tr.append(td);
    }
    return tr;
  }

  // The keyboard: one row is in the tab order, and arrows go from row to row.

  const indexOf = tr => tr ? Number(tr.getAttribute('aria-rowindex')) - 2 : 0;

  const buttonAt = index => at('rows').querySelector('tr[aria-rowindex="' + (index + 2) + '"] button');

  function markCursor() {
    const held = Math.min(Math.max(list.cursor, list.offset), list.offset + list.items.length - 1);
    for (const button of at('rows').querySelectorAll('button')) button.tabIndex = indexOf(button.closest('tr')) === held ? 0 : -1;
  }

  async function move(e) {
    const page = visible()[1] - 3;
    const to = { ArrowDown: list.cursor + 1, ArrowUp: list.cursor - 1, PageDown: list.cursor + page, PageUp: list.cursor - page, Home: 0, End: list.matched - 1 }[e.key];
    if (to === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    list.cursor = Math.min(Math.max(to, 0), list.matched - 1);
    const box = at('scroll'), top = list.cursor * rowHeight(), seen = box.clientHeight - at('heads').offsetHeight - rowHeight();
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top > box.scrollTop + seen) box.scrollTop = top - seen;
    if (!buttonAt(list.cursor)) await load().catch(() => {});
    const now = document.activeElement; // elsewhere, if somebody was quicker
    if (now === document.body || at('rows').contains(now)) buttonAt(list.cursor)?.focus({ preventScroll: true });
  }

  const parts = $('list').content.cloneNode(true);
  for (const part of parts.querySelectorAll('[id]')) part.id = prefix + part.id;
  at('scroll').append(parts);
  at('table').setAttribute('aria-labelledby', at('scroll').closest('section').getAttribute('aria-labelledby'));
  for (const column of o.columns) at('heads').append(head(column));
  markSort();
  const rows = at('rows');
  rows.append(gap(), gap());
  rows.addEventListener('click', e => { const tr = e.target.closest('tr'); if (tr?.item) o.open(tr.item); });
  rows.addEventListener('keydown', move);
  rows.addEventListener('focusin', e => { list.cursor = indexOf(e.target.closest('tr')); markCursor(); });
  at('scroll').addEventListener('scroll', () => {
    const [first, count] = visible();
    if (first < list.offset || Math.min(first + count, list.matched) > list.offset + list.items.length) load().catch(() => {});
  }, { passive: true });
  small.addEventListener('change', () => { if (list.page) draw(); });
  let typing = 0;
  at('filter').addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(restart, 150);
  });
  return { load, restart };
}
