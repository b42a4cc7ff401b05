package transparent

import (
	"bufio"
	"io"
)

// readAhead is how much a client may send while its destination is dialed
// before it has to wait: a TLS ClientHello, or the header of a request.
const readAhead = 2 << 10

// ahead keeps what a client sends while its destination is dialed. It is an
// admission.Ahead, so that a client that leaves is noticed meanwhile. It takes
// no memory unless the dial lasts.
type ahead struct {
	from io.Reader
	kept []byte
}

// Fill implements admission.Ahead.
func (a *ahead) Fill() (held int, err error) {
	if a.kept == nil {
		a.kept = make([]byte, 0, readAhead)
	}
	if len(a.kept) == cap(a.kept) {
		return len(a.kept), bufio.ErrBufferFull
	}
	n, err := a.from.Read(a.kept[len(a.kept):cap(a.kept)])
	a.kept = a.kept[:len(a.kept)+n]
	return len(a.kept), err
}
