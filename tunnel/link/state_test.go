package link

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// stateTable reads the table of §4 as the specification has it.
func stateTable(t *testing.T) (table [states][events]state) {
	t.Helper()
	spec, err := os.ReadFile("../../docs/link-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rows, found := strings.Cut(string(spec), "| state | sends | on receiving | becomes |\n|---|---|---|---|\n")
	if !found {
		t.Fatal("the table of states is not where it was")
	}
	rows, _, _ = strings.Cut(rows, "\n\n")
	var from []state
	for row := range strings.Lines(rows) {
		cell := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		for i := range cell {
			cell[i] = strings.TrimSpace(cell[i])
		}
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
		if !ok {
			t.Fatalf("the specification has a frame %q", name)
		}
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
			if got := s.after(e); got != want[s][e] {
				t.Errorf("%v, event %d: %v here, %v in the specification", s, e, got, want[s][e])
			}
		}
	}
}

func TestStatesOfAStream(t *testing.T) {
	for name, c := range map[string]struct {
		events []event
		want   state
	}{
		"asked for":                    {[]event{sendsOpen}, opening},
		"refused":                      {[]event{sendsOpen, receivesFailure}, closed},
		"given up":                     {[]event{sendsOpen, sendsReset}, closed},
		"served":                       {[]event{receivesOpen, sendsOpened}, open},
		"dialed in vain":               {[]event{receivesOpen, sendsFailure}, closed},
		"cancelled":                    {[]event{receivesOpen, receivesReset}, closed},
		"ended here first":             {[]event{sendsOpen, receivesOpened, sendsFin}, halfClosedLocal},
		"ended here, then there":       {[]event{sendsOpen, receivesOpened, sendsFin, receivesFin}, ended},
		"ended there first":            {[]event{sendsOpen, receivesOpened, receivesFin}, halfClosedRemote},
		"ended there, then here":       {[]event{sendsOpen, receivesOpened, receivesFin, sendsFin}, ended},
		"all was acknowledged":         {[]event{sendsOpen, receivesOpened, receivesFin, sendsFin, acknowledged}, closed},
		"given up by its acceptor":     {[]event{receivesOpen, sendsOpened, receivesFin, sendsFin, receivesReset}, closed},
		"ended here, reset there":      {[]event{sendsOpen, receivesOpened, sendsFin, receivesReset}, closed},
		"ended there, reset here":      {[]event{sendsOpen, receivesOpened, receivesFin, sendsReset}, closed},
		"answered twice":               {[]event{sendsOpen, receivesOpened, receivesOpened}, idle},
		"ended twice":                  {[]event{sendsOpen, receivesOpened, sendsFin, sendsFin}, idle},
		"ended before it was answered": {[]event{receivesOpen, receivesFin}, idle},
		"heard of once it is closed":   {[]event{sendsOpen, sendsReset, receivesReset}, idle},
	} {
		t.Run(name, func(t *testing.T) {
			s := idle
			for _, e := range c.events {
				s = s.after(e)
			}
			if s != c.want {
				t.Errorf("the stream is %v, want %v", s, c.want)
			}
		})
	}
	receiving := []state{open, halfClosedLocal}
	for s := range states {
		if s.receives() != slices.Contains(receiving, s) {
			t.Errorf("%v: receives() = %v", s, s.receives())
		}
		if s.established() != (s == open || s == halfClosedLocal || s == halfClosedRemote || s == ended) {
			t.Errorf("%v: established() = %v", s, s.established())
		}
	}
}
