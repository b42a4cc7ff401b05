package tunnel

// A front that has to parse what it passes on, such as HTTP messages, cannot
// leave the bytes to Run. It may keep a Relay all the same, to show Observers,
// and note by Holding and Carried what Run would.

// Holding notes whether bytes now wait to be taken by B (up) or by A; Held tells
// it. It may be called at any time from anywhere.
func (r *Relay) Holding(up, held bool) {
	if up {
		r.held[0].Store(held)
		return
	}
	r.held[1].Store(held)
}

// Carried notes that n bytes were passed to B (up) or to A; Sent and Total count
// them. It may be called at any time from anywhere.
func (r *Relay) Carried(up bool, n int) {
	for _, c := range r.counters(up) {
		if c != nil {
			c.Add(int64(n))
		}
	}
}
