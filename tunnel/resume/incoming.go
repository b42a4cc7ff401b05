package resume

const (
	// Step is how many bytes an end takes at most before it acknowledges: half of the
	// least that a peer can keep.
	Step = 64 << 10

	// BigStep is the same for a peer that says that it can keep twice a BigStep. Each
	// acknowledgement costs every process on the way a record and a system call.
	BigStep = 256 << 10
)

// Incoming is the direction toward an end. The zero value is ready to use.
type Incoming struct {
	taken uint64 // offset below which all came out of carriers, the end included
	told  uint64 // offset that was acknowledged
	fin   bool   // the end was taken
	big   bool   // the peer keeps twice a BigStep
}

// Take counts n bytes as taken. They will not be sent again: the caller delivers them, or
// ends the connection.
func (in *Incoming) Take(n int) { in.taken += uint64(n) }

// Finish counts the end of the direction as taken.
func (in *Incoming) Finish() {
	if !in.fin {
		in.fin = true
		in.taken++
	}
}

// Finished reports whether the end was taken.
func (in *Incoming) Finished() bool { return in.fin }

// Owes reports whether bytes, or the end, were taken and not acknowledged.
func (in *Incoming) Owes() bool { return in.told < in.taken }

// Due reports whether to acknowledge at once, because the peer may wait for room. The end of this
// direction can wait for the end of the other (outFinished), since both then go together.
func (in *Incoming) Due(outFinished bool) bool {
	return in.taken-in.told >= in.step() || outFinished && in.fin && in.Owes()
}

// Keeps notes whether the peer says that it can keep twice a BigStep. Each new carrier
// begins with false.
func (in *Incoming) Keeps(big bool) { in.big = big }

func (in *Incoming) step() uint64 {
	if in.big {
		return BigStep
	}
	return Step
}

// Tell returns the offset to acknowledge, and counts it as acknowledged.
func (in *Incoming) Tell() uint64 {
	in.told = in.taken
	return in.told
}
