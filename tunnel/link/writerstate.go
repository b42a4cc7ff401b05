package link

// writerState is the state of access to a link's connection. A turn is the right to write;
// the writer is the goroutine with the turn.
type writerState uint8

const (
	writerNever    writerState = iota // no state: where an event cannot lead
	writerFree                        // the turn is free for a stream or the flusher
	writerTaken                       // a stream or the flusher writes; streams wait in line
	writerDraining                    // the link is about to close, and the last of these still writes
	writerClosing                     // it has ended its turn: GOAWAY may take the last one
	writerGoodbye                     // GOAWAY is written
	writerDead                        // the link has ended
	writerStates
)

func (s writerState) String() string {
	return [writerStates]string{"never", "free", "taken", "draining", "closing", "goodbye", "dead"}[s]
}

// writerEvent takes the writer from one state to another.
type writerEvent uint8

const (
	takesTurn writerEvent = iota
	freesTurn
	closes // the link is about to end: streams get no more turns
	dies   // the link has ended
	writerEvents
)

// writerTransitions are all that may happen. A writer may learn of the link's end only
// as it frees its turn.
var writerTransitions = [writerStates][writerEvents]writerState{
	writerFree:     {takesTurn: writerTaken, closes: writerClosing, dies: writerDead},
	writerTaken:    {freesTurn: writerFree, closes: writerDraining, dies: writerDead},
	writerDraining: {freesTurn: writerClosing, closes: writerDraining, dies: writerDead},
	writerClosing:  {takesTurn: writerGoodbye, closes: writerClosing, dies: writerDead},
	writerGoodbye:  {closes: writerGoodbye, dies: writerDead},
	writerDead:     {freesTurn: writerDead, closes: writerDead},
}

// after is the state that e leads to.
func (s writerState) after(e writerEvent) writerState {
	next := writerTransitions[s][e]
	if next == writerNever {
		panic("link: a writer that is " + s.String() + " was taken further")
	}
	return next
}

// writing reports whether a goroutine has the turn.
func (s writerState) writing() bool {
	return s == writerTaken || s == writerDraining || s == writerGoodbye
}
