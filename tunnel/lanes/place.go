package lanes

// load is what is on a lane.
type load struct {
	bulk   int  // streams that carried much when they were last looked at, or are newer than that
	gone   bool // it has ended
	leaves bool // nothing new is to go on it while there is another
}

// place is the lane that a new stream goes on: the one with the least bulk, the
// first of several, so that others stay free for what turns out to be bulk; one
// that leaves only if there is no other. It is -1 if all are gone.
func place(lanes []load) int {
	best := -1
	for i, l := range lanes {
		if !l.gone && (best < 0 || l.before(lanes[best])) {
			best = i
		}
	}
	return best
}

// before says whether a stream is better put on l than on o.
func (l load) before(o load) bool {
	if l.leaves != o.leaves {
		return o.leaves
	}
	return l.bulk < o.bulk
}

// placeBulk is the lane that bulk moves to from the first: the best of the others,
// if there is one.
func placeBulk(lanes []load) int {
	if len(lanes) > 1 {
		if i := place(lanes[1:]); i >= 0 && !lanes[1+i].leaves {
			return 1 + i
		}
	}
	return place(lanes)
}

// leaving is how many of the first lane's bulk streams go elsewhere, where there are so
// many lanes: none that is alone there, all that hold up small messages, and else all
// but one if there is one for each lane.
func leaving(bulk, small, lanes int) int {
	switch {
	case bulk+small < 2:
		return 0
	case small == 0 && bulk >= lanes:
		return bulk - 1
	}
	return bulk
}
