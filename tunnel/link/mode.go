package link

// Mode says whether a program speaks the link with its peers: what --link means
// on all of them.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"    // with peers that have it, else the protocol of old ones
	Off     Mode = "off"     // with no peer
	Require Mode = "require" // an old peer is an error
)

// Valid says whether m is one of them.
func (m Mode) Valid() bool { return m == Auto || m == Off || m == Require }
