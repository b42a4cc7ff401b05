package routes

// place is a key of one cluster.
type place struct {
	cluster string
	key     Key
}

// Feed is what one peer has yet to be told. Of several changes to one key, it keeps the
// last.
type Feed struct {
	pending map[place]bool
	all     bool // the peer is to be told that this was all
}

// Put notes that a key is there, or gone; false: so much waits that the peer has to be
// told all anew.
func (f *Feed) Put(cluster string, k Key, there bool) bool {
	if f.pending == nil {
		f.pending = make(map[place]bool)
	}
	f.pending[place{cluster, k}] = there
	return len(f.pending) <= MaxRoutes
}

// PutAll marks the end of the full list: Take returns the mark after all that was put.
func (f *Feed) PutAll() { f.all = true }

// Take removes what waits, and returns it as it is sent, in pieces of some size: after
// the last one, the Feed is empty.
func (f *Feed) Take(size int) []byte {
	var b []byte
	for at, there := range f.pending {
		op := Gone
		if there {
			op = There
		}
		b = Record{op, at.cluster, at.key}.Append(b)
		delete(f.pending, at)
		if len(b) >= size {
			return b
		}
	}
	f.pending = nil
	if f.all {
		b, f.all = Record{Op: All}.Append(b), false
	}
	return b
}
