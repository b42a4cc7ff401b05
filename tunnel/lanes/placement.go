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

// takers is how many lanes other than the first take bulk.
func takers(lanes []load) (n int) {
	for i, l := range lanes {
		if i > 0 && !l.gone && !l.leaves {
			n++
		}
	}
	return n
}

// amount is what carried something on a lane.
type amount struct {
	bulk, small int // streams
	first       bool
}

// leaving returns how many bulk streams leave each lane, where so many others than the first
// take some. Of the first lane's, that is none if a stream is alone there, all if they hold
// up small ones, and otherwise all but one if there is one for each lane. Another lane keeps
// its equal part.
func leaving(lanes []amount, others int) []int {
	leave := make([]int, len(lanes))
	if others == 0 {
		return leave
	}
	part := others - 1 // rounds up
	for i, l := range lanes {
		switch {
		case !l.first:
			part += l.bulk
		case l.bulk+l.small < 2: // alone
		case l.small == 0 && l.bulk > others:
			leave[i] = l.bulk - 1
		default:
			leave[i] = l.bulk
		}
		part += leave[i]
	}
	part /= others
	for i, l := range lanes {
		if !l.first {
			leave[i] = max(0, l.bulk-part)
		}
	}
	return leave
}
