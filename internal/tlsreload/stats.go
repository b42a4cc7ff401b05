package tlsreload

import (
	"crypto/x509"
	"time"
)

// Stats are figures for metrics; counters are since the start.
type Stats struct {
	Changes int64 // good changes that came into use; the first reading does not count
	Faults  int64 // distinct ones
	Refused int64 // peers, by Options.Peer or a revocation list
	Broken  bool  // the files cannot be used; the last good ones are

	// First is, of each file in use, the certificate that expires first. It must not be
	// modified.
	First map[string]*x509.Certificate

	// Lists is the file of revocation lists, and ListsUntil when the first of them is to be
	// replaced; zero: there is none, or none says so.
	Lists      string
	ListsUntil time.Time
}

// Name is Options.Name.
func (s *Source) Name() string { return s.opts.Name }

// Stats returns the figures. It does no I/O.
func (s *Source) Stats() Stats {
	now := s.state.Load()
	out := Stats{Changes: s.changes.Load(), Faults: s.faults.Load(), Refused: s.refused.Load(), Broken: now.fault != nil}
	if now.material != nil {
		out.First = now.material.first
		if lists := now.material.lists; lists != nil {
			out.Lists, out.ListsUntil = s.files.CRL, lists.Until
		}
	}
	return out
}
