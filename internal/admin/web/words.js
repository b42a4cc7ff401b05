// Words for figures, and elements that hold text and nothing else.

export const $ = id => document.getElementById(id);

// Names come from whoever connects. Characters that cannot be seen, or that
// turn others around, are spelled out.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|\ud82f[\udca0-\udca3]|\ud834[\udd73-\udd7a]|[\udb40-\udb43][\udc00-\udfff]/g;
const spelled = unit => '\\u' + unit.charCodeAt(0).toString(16).padStart(4, '0');
export const plain = text => String(text).replace(unseen, c => c.split('').map(spelled).join(''));

export function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = plain(text);
  return e;
}

// set changes what is not so already, so that nothing is drawn in vain.
export function set(e, text) {
  text = plain(text);
  if (e.textContent !== text) e.textContent = text;
}

export function setClass(e, className) { if (e.className !== className) e.className = className; }

export function setTitle(e, text) {
  text = plain(text);
  if (e.title !== text) e.title = text;
}

// measured splits a figure from its unit, so that both stand in columns.
export function measured(e, text) {
  if (e.dataset.text === text) return;
  e.dataset.text = text;
  const at = text.indexOf(' ');
  if (at < 0) e.replaceChildren(element('span', 'figure', text), element('span', 'unit', ''));
  else e.replaceChildren(element('span', 'figure', text.slice(0, at)), ' ', element('span', 'unit', text.slice(at + 1)));
}

export function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  while (n >= 999.5 && i < units.length - 1) { n /= 1000; i++; }
  return (n >= 99.95 || i === 0 ? Math.round(n) : n.toFixed(1)) + ' ' + units[i];
}

export const rate = n => n > 0 ? bytes(n) + '/s' : '–';

export function seconds(s) {
  if (s < 1e-3) return Math.max(1, Math.round(s * 1e6)) + ' µs';
  if (s < 0.9995) return (s * 1e3).toFixed(s < 0.00995 ? 1 : 0) + ' ms';
  if (s < 59.5) return s.toFixed(s < 9.95 ? 1 : 0) + ' s';
  if (s < 3600) return Math.max(1, Math.floor(s / 60)) + ' min';
  if (s < 172800) return Math.floor(s / 3600) + ' h';
  return Math.floor(s / 86400) + ' d';
}

// whole is seconds for what is looked at once a second.
export const whole = s => s < 59.5 ? Math.max(0, Math.round(s)) + ' s' : seconds(s);

export const clock = t => new Date(t).toLocaleTimeString('en-GB');
export const number = n => n.toLocaleString('en');
export const perSecond = n => (n >= 9.95 ? Math.round(n) : n.toFixed(1)) + ' /s';
export const plural = (n, word) => number(n) + ' ' + word + (n === 1 ? '' : 's');

// The server's clock, by which its times are told.
let skew = 0;
export const setClock = now => { skew = Date.parse(now) - Date.now(); };
export const age = since => Math.max(0, (Date.now() + skew - Date.parse(since)) / 1000);

const api = location.origin + '/api/v1/'; // without user and password that may be in the page's address
const longest = 5000; // ms that an answer may take

// ask returns what the API answers, or fails with its sentence.
export async function ask(path) {
  const response = await fetch(api + path, { signal: AbortSignal.timeout(longest), cache: 'no-store' });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error || response.statusText), { status: response.status });
  return answer;
}
