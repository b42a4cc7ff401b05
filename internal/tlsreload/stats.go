package tlsreload

import "time"

// Stats are figures for metrics; counters are since the start.
type Stats struct {
	Changes int64 // good changes that came into use; the first reading does not count
	Faults  int64 // distinct ones
	Refused int64 // peers, by Options.Peer or a revocation list
	Broken  bool  // the files cannot be used; the last good ones are

	// Expiry is when the first certificate of each file in use expires. It must not be
	// modified.
	Expiry map[string]time.Time

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
		out.Expiry = now.material.expiry
		if lists := now.material.lists; lists != nil {
			out.Lists, out.ListsUntil = s.files.CRL, lists.Until
		}
	}
	return out
}
