// Whether all of the process is shown, or one tenant of a server of many. Which
// one is part of the address, so that it can be linked to, and gone back from.

export const scope = {
  tenant: '', // that was chosen
  shown: '',  // that is shown: another only for who may see no more than that one
  servers: '', // 'all' where tenants are shown as all servers have them
};

const prefix = '#tenant=';

// watchScope calls changed when another tenant, or all, is to be shown.
export function watchScope(changed) {
  const read = () => {
    const tenant = location.hash.startsWith(prefix) ? decode(location.hash.slice(prefix.length)) : '';
    if (tenant === scope.tenant) return;
    scope.tenant = tenant;
    changed();
  };
  addEventListener('hashchange', read);
  read();
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function choose(tenant) { location.hash = tenant ? prefix + encodeURIComponent(tenant) : ''; }
