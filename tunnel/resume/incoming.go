package resume

const (
	// Step is what an end takes at most before it acknowledges: half of what every
	// peer can keep.
	Step = 64 << 10

	// BigStep is the same where the peer says that it can keep twice as much. Each
	// acknowledgement costs every process on the way a record and a system call.
	BigStep = 256 << 10
)

// Incoming is the direction toward an end. The zero value is ready to use.
type Incoming struct {
	taken uint64 // out of carriers, the end included
	told  uint64 // acknowledged
	fin   bool
	big   bool // the peer keeps much
}

// Take counts n bytes as taken. What is taken will not be sent again: the end
// delivers it, or ends the connection.
func (in *Incoming) Take(n int) { in.taken += uint64(n) }

// Finish counts the end of the direction as taken.
func (in *Incoming) Finish() {
	if !in.fin {
		in.fin = true
		in.taken++
	}
}

// Finished says whether the end was taken.
func (in *Incoming) Finished() bool { return in.fin }

// Owes says whether something was taken and not acknowledged.
func (in *Incoming) Owes() bool { return in.told < in.taken }

// Due tells whether to acknowledge at once: the peer may wait for room. The end of this
// direction can wait for the end of the other (outFinished), since both then go together.
func (in *Incoming) Due(outFinished bool) bool {
	return in.taken-in.told >= in.step() || outFinished && in.fin && in.Owes()
}

// Keeps takes in whether the peer says that it can keep twice a BigStep. Until it
// does, and from each new carrier on, it cannot.
func (in *Incoming) Keeps(big bool) { in.big = big }

func (in *Incoming) step() uint64 {
	if in.big {
		return BigStep
	}
	return Step
}

// Tell returns the offset to acknowledge, and counts it as told.
func (in *Incoming) Tell() uint64 {
	in.told = in.taken
	return in.told
}
