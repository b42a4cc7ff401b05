package admission

// Shares are how a process shares out its descriptors, so that those who have
// not proved who they are can take them from nobody. What is left over is for
// peers that have, and for what the process opens itself.
type Shares struct {
	Strangers int // connections that have yet to prove themselves
	Clients   int // connections of clients that have
	Observers int // connections of one port for health, metrics or status
}

const (
	// minObservers is how many connections a port for health has in any case: a
	// probe, a scraper and somebody who looks.
	minObservers = 4
)

// ShareOut shares out descriptors; 0 stands for as many as one likes, and so
// do 0 shares.
func ShareOut(descriptors int) Shares {
	if descriptors <= 0 {
		return Shares{}
	}
	return Shares{
		Strangers: max(1, descriptors/4),
		Clients:   max(1, descriptors/2),
		Observers: max(minObservers, descriptors/32),
	}
}

// AtMost is the lower of two limits, where 0 is none.
func AtMost(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
