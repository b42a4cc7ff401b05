package reach

import "crypto/tls"

// keyOf is a key that only the two ends of a TLS connection can derive; "" for one of TLS 1.2
// that has none. A link from this server's id to the same id leads back to this server, or to
// another one that was given the same id: this tells which.
func keyOf(state *tls.ConnectionState) string {
	key, _ := state.ExportKeyingMaterial("EXPORTER-konnectivity-server", nil, 16)
	return string(key)
}

// Own notes a link that was accepted from a server with this server's id, until forget. It is
// called before the other end learns the id of this one.
func (s *Servers) Own(state *tls.ConnectionState) (forget func()) {
	key := keyOf(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[key] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.own, key)
	}
}

// accepted says whether a link that was made here was accepted here.
func (s *Servers) accepted(state *tls.ConnectionState) bool {
	key := keyOf(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own[key]
}
