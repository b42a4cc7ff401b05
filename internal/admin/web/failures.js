// The last failures, each with its cause and what can be done.

import { $, clock, element, number, seconds, set } from './words.js';

import { scope } from './scope.js';

let newest = '';

export function showFailures(page) {
  $('no-failures').hidden = page.items.length > 0;
  $('failures').hidden = page.items.length === 0;
  const n = page.matched;
  set($('failure-count'), n ? (n > page.items.length ? 'newest ' + number(page.items.length) + ' of ' : '') + number(n) : '');
  const now = scope.shown + ' ' + page.items.length + ' ' + (page.items.length ? page.items[0].time + page.items[0].id : '');
  if (now === newest) return;
  newest = now;
  $('failures').replaceChildren(...page.items.map(failure));
}

function failure(f) {
  const li = element('li');
  const time = element('time', 'soft', clock(f.time));
  time.dateTime = f.time;
  const what = element('div', 'what');
  const first = element('p');
  first.append(element('strong', '', f.destination), element('span', 'cause', sentence(f.cause)));
  const more = [f.stage === 'dial' ? 'dialed for ' + seconds(f.seconds) : 'lasted ' + seconds(f.seconds), f.next ? 'by ' + f.next : '', f.front, f.tenant && !scope.shown ? 'tenant ' + f.tenant : '', f.source ? 'from ' + f.source : ''];
  const facts = element('p', 'facts soft', more.filter(Boolean).join(' · ') + (f.id ? ' · ' : ''));
  if (f.id) facts.append(element('span', 'code', f.id));
  what.append(first);
  if (f.hint) what.append(element('p', 'hint', '→ ' + f.hint));
  what.append(facts);
  li.append(time, element('span', 'label bad', '✕ ' + f.failure.replaceAll('_', ' ')), what);
  return li;
}

const sentence = text => text ? text[0].toUpperCase() + text.slice(1).replace(/\.?$/, '.') : '';
