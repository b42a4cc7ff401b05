package reach

import (
	"crypto/tls"
	"sync"
)

// own are the links that were accepted here from a server with this server's id. The other end of
// such a link is this server, or another one that was given the same id: both ends of one TLS
// connection can derive a key from it that no other connection has.
type own struct {
	mu   sync.Mutex
	keys map[string]bool
}

// keyOf is "" for a TLS 1.2 connection that has none.
func keyOf(state *tls.ConnectionState) string {
	key, _ := state.ExportKeyingMaterial("EXPORTER-konnectivity-server", nil, 16)
	return string(key)
}

// Own notes a link that was accepted from a server with this server's id, until forget. It is
// called before the other end learns the id of this one.
func (s *Servers) Own(state *tls.ConnectionState) (forget func()) {
	key := keyOf(state)
	s.own.mu.Lock()
	defer s.own.mu.Unlock()
	s.own.keys[key] = true
	return func() {
		s.own.mu.Lock()
		defer s.own.mu.Unlock()
		delete(s.own.keys, key)
	}
}

// has says whether the other end of a link that was made here was accepted here.
func (o *own) has(state *tls.ConnectionState) bool {
	key := keyOf(state)
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys[key]
}
