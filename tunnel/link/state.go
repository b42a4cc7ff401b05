package link

// state is where a stream is in its life (docs/link-protocol.md §4). One that is
// open or half-closed is established; one that is closed is in no link's books.
type state uint8

const (
	idle state = iota
	opening
	dialing
	open
	halfClosedLocal
	halfClosedRemote
	ended // in order both ways, but for acknowledgements that are to pass (§9)
	closed
	states
)

func (s state) String() string {
	return [states]string{"idle", "opening", "dialing", "open", "half-closed, local", "half-closed, remote", "ended", "closed"}[s]
}

// event is a frame that takes a stream from one state to another. The loss of
// the link is a RESET received, as far as its streams are concerned.
type event uint8

const (
	sendsOpen event = iota
	sendsOpened
	sendsFailure // OPENED with a failure
	sendsFin
	sendsReset
	receivesOpen
	receivesOpened
	receivesFailure
	receivesFin
	receivesReset
	acknowledged // the end of both directions was, both ways
	events
)

// transitions are what §4 allows. Nothing else can happen: what a peer sends is
// checked before, and what this side sends is guarded by its own halves.
var transitions = [states][events]state{
	idle: {sendsOpen: opening, receivesOpen: dialing},
	opening: {
		sendsReset:     closed,
		receivesOpened: open, receivesFailure: closed, receivesReset: closed,
	},
	dialing: {
		sendsOpened: open, sendsFailure: closed, sendsReset: closed,
		receivesReset: closed,
	},
	open: {
		sendsFin: halfClosedLocal, sendsReset: closed,
		receivesFin: halfClosedRemote, receivesReset: closed,
	},
	halfClosedLocal:  {sendsReset: closed, receivesFin: ended, receivesReset: closed},
	halfClosedRemote: {sendsFin: ended, sendsReset: closed, receivesReset: closed},
	ended:            {sendsReset: closed, receivesReset: closed, acknowledged: closed},
}

// after is the state that e leads to; idle, which nothing leads to, means that
// e is impossible.
func (s state) after(e event) state { return transitions[s][e] }

// established says whether OPENED told of success.
func (s state) established() bool { return s >= open && s < closed }

// peerEnded reports whether the peer has ended its direction, and not the stream.
func (s state) peerEnded() bool { return s == halfClosedRemote || s == ended }

// receives says whether the peer may send DATA.
func (s state) receives() bool { return s == open || s == halfClosedLocal }
