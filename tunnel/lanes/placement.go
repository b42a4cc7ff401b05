package lanes

// load describes a lane to place.
type load struct {
	bulk   int  // streams that were bulk at the last sample, or are newer
	gone   bool // it has ended
	leaves bool // it takes new streams only if no other lane does
}

// place returns the lane for a new stream: the one with the least bulk, and of several
// the first, so that others stay free for later bulk. It returns a lane that leaves only
// if there is no other, and -1 if all are gone.
func place(lanes []load) int {
	best := -1
	for i, l := range lanes {
		if !l.gone && (best < 0 || l.before(lanes[best])) {
			best = i
		}
	}
	return best
}

// before reports whether a stream is better put on l than on o.
func (l load) before(o load) bool {
	if l.leaves != o.leaves {
		return o.leaves
	}
	return l.bulk < o.bulk
}

// placeBulk returns the lane that bulk moves to from the first: the best of the others, if
// there are any.
func placeBulk(lanes []load) int {
	if len(lanes) > 1 {
		if i := place(lanes[1:]); i >= 0 && !lanes[1+i].leaves {
			return 1 + i
		}
	}
	return place(lanes)
}

// leaving returns how many of the first lane's bulk streams move elsewhere: none if a
// stream is alone there, all if they hold up small ones, and otherwise all but one if
// there is one for each lane.
func leaving(bulk, small, lanes int) int {
	switch {
	case bulk+small < 2:
		return 0
	case small == 0 && bulk >= lanes:
		return bulk - 1
	}
	return bulk
}
