package tenant

// filesEvery is how many looks pass from one at a tenant's files to the next. Its
// folder, at which every look looks, shows files that are added, removed or
// replaced. It does not show that a file was written to, and
// there are thousands of files, each of which costs a system call.
const filesEvery = 3

// rounds says in which looks each tenant's files are looked at. It has no I/O.
type rounds struct {
	looks uint // begun so far
	given uint // turns
}

// begin begins a look.
func (r *rounds) begin() { r.looks++ }

// turn is that of a new tenant. As many have each, so all looks cost the same.
func (r *rounds) turn() uint {
	r.given++
	return r.given % filesEvery
}

// due says whether this look is at the files of those with a turn.
func (r *rounds) due(turn uint) bool { return r.looks%filesEvery == turn }
