package tunnel

import (
	"errors"
	"iter"
)

// LossCause says why the link that carried a connection is gone. The process at
// either end of the link judges that for itself: a cause is never sent to a peer,
// which reads CodeLost alone.
type LossCause uint8

// The causes of a loss.
const (
	LossUnknown LossCause = iota // another process lost it, or lost something else than a link

	// From here to LossReplaced: those of LinkLossCauses.

	LossCut      // the connection failed, or ended without a word
	LossSilent   // the peer sent nothing, or took nothing, for too long
	LossClosed   // the peer said that it closes the link
	LossViolated // either side broke the protocol
	LossReplaced // another link, or another stream, has taken its place

	LossLocal // this process closed the link

	lossEnd // stays last: one more than the last cause
)

// LossCauses is how many causes there are; each is below it.
const LossCauses = int(lossEnd)

// AllLossCauses are the causes in the order of their numbers.
func AllLossCauses() iter.Seq[LossCause] { return between(LossUnknown, lossEnd) }

// LinkLossCauses are those for which links are lost: a link that this process closes is not.
func LinkLossCauses() iter.Seq[LossCause] { return between(LossCut, LossReplaced+1) }

// lossTable holds what each cause is called in metrics and sentences.
var lossTable = [lossEnd]name{
	LossUnknown:  {"unknown", "no cause is known here"},
	LossCut:      {"cut", "its connection was cut"},
	LossSilent:   {"silent", "its peer fell silent"},
	LossClosed:   {"closed", "its peer closed it"},
	LossViolated: {"violated", "the protocol was broken on it"},
	LossReplaced: {"replaced", "another took its place"},
	LossLocal:    {"local", "this process closed it"},
}

// String is the cause in a few words.
func (c LossCause) String() string { return c.name().text }

// Label is the cause as a value of a metric's label and of a log field.
func (c LossCause) Label() string { return c.name().label }

func (c LossCause) name() name { return nameOf(lossTable[:], c, "unknown", "loss %d") }

// lost holds one error for each cause, so that a link's end allocates nothing for
// its streams, however many there are.
var lost = func() (all [lossEnd]*ResetError) {
	for c := range AllLossCauses() {
		all[c] = &ResetError{Code: CodeLost, Loss: c}
	}
	return all
}()

// Lost is the error of streams whose link is gone: a *ResetError with CodeLost. It
// is the same pointer for each cause, and must not be changed.
func Lost(c LossCause) *ResetError {
	if c < lossEnd {
		return lost[c]
	}
	return lost[LossUnknown]
}

// Loss is an error that tells why a link was lost.
type Loss interface {
	error
	LossCause() LossCause
}

// LossOf finds why a link was lost in the error that ended it, or a connection on it;
// LossUnknown if err is of no loss, or does not tell.
func LossOf(err error) LossCause {
	if loss, ok := errors.AsType[Loss](err); ok {
		return loss.LossCause()
	}
	return LossUnknown
}
