package admission

// Shares divides the descriptors of a process, so that peers that have not
// proved who they are cannot take them from others. The rest is for peers that
// have, and for what the process opens itself.
type Shares struct {
	Unproven     int // connections that have yet to prove themselves
	Clients      int // connections of clients that have proved themselves
	Relayed      int // the same where each may need another one for its way on
	Pooled       int // connections that are kept for later requests, beside those of Relayed; 2 or more
	Destinations int // connections that an agent makes for clients
	Dialed       int // open descriptors of the process above which clients' dials are refused
	Observers    int // connections of one port for health, metrics or status
}

const (
	// minObservers is how many connections a port for health may always have: a
	// probe, a scraper and a person.
	minObservers = 4
)

// ShareOut divides descriptors. 0 means no limit, for descriptors as for
// shares.
func ShareOut(descriptors int) Shares {
	if descriptors <= 0 {
		return Shares{}
	}
	return Shares{
		Unproven:     max(1, descriptors/4),
		Clients:      max(1, descriptors/2),
		Relayed:      max(1, descriptors/4),
		Pooled:       max(2, descriptors/16),
		Destinations: max(1, descriptors/4*3),
		Dialed:       descriptors - descriptors/8,
		Observers:    max(minObservers, descriptors/32),
	}
}

// AtMost returns the lower of two limits, where 0 means none.
func AtMost(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
