package link

import (
	"testing"

	"konnectivity/internal/testutil"
)

// Every event in every state, written down a second time: the others are
// impossible.
func TestWriterStates(t *testing.T) {
	want := map[writerState]map[writerEvent]writerState{
		writerFree:     {takesTurn: writerTaken, closes: writerClosing, dies: writerDead},
		writerTaken:    {freesTurn: writerFree, closes: writerDraining, dies: writerDead},
		writerDraining: {freesTurn: writerClosing, closes: writerDraining, dies: writerDead},
		writerClosing:  {takesTurn: writerGoodbye, closes: writerClosing, dies: writerDead},
		writerGoodbye:  {closes: writerGoodbye, dies: writerDead},
		writerDead:     {freesTurn: writerDead, closes: writerDead},
	}
	for s := writerFree; s < writerStates; s++ {
		writing := s == writerTaken || s == writerDraining || s == writerGoodbye
		testutil.Holds(t, s.writing() == writing, "%v: writing is %v", s, s.writing())
		for e := range writerEvents {
			next, ok := want[s][e]
			got, panicked := s.try(e)
			testutil.Holds(t, panicked != ok && got == next, "%v, event %d: %v, want %v", s, e, got, next)
		}
	}
}

// try is after, and whether it has panicked.
func (s writerState) try(e writerEvent) (next writerState, panicked bool) {
	defer func() { panicked = recover() != nil }()
	return s.after(e), false
}
