package resume

// ackStep is what an end takes at most before it acknowledges: half of the
// smallest buffer that a peer may have to keep.
const ackStep = 64 << 10

// Incoming is the direction toward an end. The zero value is ready to use.
type Incoming struct {
	taken uint64 // out of carriers, the end included
	told  uint64 // acknowledged
	fin   bool
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

// Taken is the offset up to which all was taken.
func (in *Incoming) Taken() uint64 { return in.taken }

// Owes says whether something was taken and not acknowledged.
func (in *Incoming) Owes() bool { return in.told < in.taken }

// Due says whether the peer is to be told at once, and not when it falls silent.
func (in *Incoming) Due() bool {
	return in.taken-in.told >= ackStep || in.fin && in.Owes()
}

// Tell returns the offset to acknowledge, and counts it as told.
func (in *Incoming) Tell() uint64 {
	in.told = in.taken
	return in.told
}
