package admission

import (
	"container/list"
	"net/netip"
)

// Rotation holds those who wait for their turn, by source. Sources take turns,
// so that a flood delays only its own; within a source it is first come, first
// served. It has no lock. The zero value is empty.
type Rotation[W any] struct {
	lines map[netip.Prefix]*list.Element // by source; of order
	order list.List                      // of *list.List; the line whose turn it is comes first
}

// Place is where one waits in a Rotation.
type Place = *list.Element

// Add makes w wait. The place it returns is what removes it.
func (r *Rotation[W]) Add(from netip.Prefix, w W) Place {
	line := r.lines[from]
	if line == nil {
		if r.lines == nil {
			r.lines = make(map[netip.Prefix]*list.Element)
		}
		line = r.order.PushBack(list.New())
		r.lines[from] = line
	}
	return line.Value.(*list.List).PushBack(w)
}

// Remove removes one who waits; its source keeps its place in the rotation.
func (r *Rotation[W]) Remove(from netip.Prefix, at Place) {
	line := r.lines[from]
	if line.Value.(*list.List).Remove(at); line.Value.(*list.List).Len() == 0 {
		r.order.Remove(line)
		delete(r.lines, from)
	}
}

// Empty reports whether nobody waits.
func (r *Rotation[W]) Empty() bool { return r.order.Len() == 0 }

// First returns the one whose turn it is, who stays, and moves its source to the
// end of the rotation. Somebody must wait.
func (r *Rotation[W]) First() W {
	front := r.order.Front()
	r.order.MoveToBack(front)
	return front.Value.(*list.List).Front().Value.(W)
}

// Last returns the last one of the longest line, among equals of the line whose
// turn is furthest off; false if nobody waits.
func (r *Rotation[W]) Last() (w W, ok bool) {
	var longest *list.List
	for line := r.order.Front(); line != nil; line = line.Next() {
		if line := line.Value.(*list.List); longest == nil || line.Len() >= longest.Len() {
			longest = line
		}
	}
	if longest == nil {
		return w, false
	}
	return longest.Back().Value.(W), true
}
