package link

import (
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// stateTable reads the table of §4 as the specification has it.
func stateTable(t *testing.T) (table [states][events]state) {
	t.Helper()
	var from []state
	for _, cell := range rowsOf(t, "| state | sends | on receiving | becomes |") {
		if cell[0] == "open, half-closed" {
			from = []state{open, halfClosedLocal, halfClosedRemote}
		} else if cell[0] != "" {
			from = []state{stateNamed(t, cell[0])}
		}
		to := stateNamed(t, cell[3])
		for _, s := range from {
			for _, e := range eventsNamed(t, cell[1], sending) {
				table[s][e] = to
			}
			for _, e := range eventsNamed(t, cell[2], receiving) {
				table[s][e] = to
			}
		}
	}
	return table
}

var (
	sending = map[string]event{
		"OPEN": sendsOpen, "OPENED success": sendsOpened, "OPENED failure": sendsFailure, "FIN": sendsFin, "RESET": sendsReset,
	}
	receiving = map[string]event{
		"OPEN": receivesOpen, "OPENED success": receivesOpened, "OPENED failure": receivesFailure, "FIN": receivesFin, "RESET": receivesReset,
		"ACK": acknowledged,
	}
)

func stateNamed(t *testing.T, name string) state {
	t.Helper()
	for s := range states {
		if s.String() == name {
			return s
		}
	}
	t.Fatalf("the specification has a state %q", name)
	return 0
}

// eventsNamed are the frames of a cell, without what it says about them.
func eventsNamed(t *testing.T, cell string, names map[string]event) (list []event) {
	t.Helper()
	if at := strings.IndexAny(cell, ":("); at >= 0 {
		cell = strings.TrimSpace(cell[:at])
	}
	if cell == "" {
		return nil
	}
	for name := range strings.SplitSeq(cell, ", ") {
		e, ok := names[name]
		testutil.Requires(t, ok, "the specification has a frame %q", name)
		list = append(list, e)
	}
	return list
}

// The states of a stream are those of the specification, by name and by what
// leads from one to another.
func TestStatesAreThoseOfTheSpecification(t *testing.T) {
	want := stateTable(t)
	for s := range states {
		for e := range events {
			testutil.Equal(t, s.after(e), want[s][e], "%v behind event %d", s, e)
		}
	}
}
