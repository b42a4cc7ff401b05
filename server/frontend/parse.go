package frontend

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"strings"

	"konnectivity/tunnel"
)

const (
	// maxHeader bounds a CONNECT request with its fields. Real ones have a few
	// hundred bytes; some carry tokens.
	maxHeader = 64 << 10

	// readAhead bounds a line of a request.
	readAhead = 4 << 10

	// idField carries the connection's id from the hop before; the sidecars
	// send it (tunnel/connect).
	idField = "Konnectivity-Id"

	// maxEmptyLines is how many empty lines may stand before a request (RFC
	// 9112 §2.2 asks to ignore at least one).
	maxEmptyLines = 4
)

// badRequest is a request that is answered with an error status.
type badRequest struct {
	status int
	reason string
}

func (e *badRequest) Error() string { return e.reason }

// asked is what a CONNECT request asks for.
type asked struct {
	authority string
	fields
}

// fields are the header fields that count.
type fields struct {
	id    string // the connection's id from the hop before; "" if none
	span  uint64 // of the hop before, in a traceparent; 0 if none
	token string // of "Proxy-Authorization: Bearer TOKEN" (RFC 6750 §2.1); a secret; "" if none
}

// readConnect reads one CONNECT request up to the empty line, and nothing
// beyond it, and returns what it asks for. A *badRequest is to be
// answered; any other error is the connection's. Of a request that is HTTP and no CONNECT, it
// returns the fields, too.
//
// The Host field is ignored: kube-apiserver sends "127.0.0.1" in it
// (k8s.io/apiserver egressselector), and for CONNECT only the request's target
// counts (RFC 9110 §9.3.6).
func readConnect(r *bufio.Reader) (asked, error) {
	line, err := firstLine(r)
	if err != nil {
		return asked{}, err
	}
	authority, refused := parseRequestLine(line)
	if refused != nil && refused.status == http.StatusBadRequest {
		return asked{}, refused // it may not be HTTP at all, and no fields may follow
	}
	has, err := readFields(r)
	if err != nil {
		return asked{}, err
	}
	if refused != nil {
		return asked{fields: has}, refused
	}
	return asked{authority, has}, nil
}

func firstLine(r *bufio.Reader) (string, error) {
	for range maxEmptyLines {
		line, whole, err := readLine(r)
		if err != nil {
			return "", err
		}
		if !whole {
			return "", &badRequest{http.StatusBadRequest, "the request line is too long"}
		}
		if line != "" {
			return line, nil
		}
	}
	return "", &badRequest{http.StatusBadRequest, "no request line"}
}

func parseRequestLine(line string) (authority string, refused *badRequest) {
	method, rest, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(rest, " ")
	switch {
	case len(version) != len("HTTP/1.1") || !strings.HasPrefix(version, "HTTP/"):
		return "", &badRequest{http.StatusBadRequest, "this is not HTTP"}
	case method != http.MethodConnect:
		return "", &badRequest{http.StatusMethodNotAllowed, "only CONNECT is served here"}
	case !strings.HasPrefix(version, "HTTP/1."):
		return "", &badRequest{http.StatusBadRequest, "only HTTP/1.1 is served here"}
	}
	if _, _, err := tunnel.SplitAddress(target); err != nil {
		return "", &badRequest{http.StatusBadRequest, tunnel.AsDialError("", err).Text()}
	}
	return target, nil
}

// readFields reads header fields up to the empty line. It checks that names are
// valid. Of the values, a bearer token, the id of the connection and the span of the hop before
// are used. The id is a sidecar's, or else the trace-id of the traceparent. A value that does
// not fit in a line of readAhead is none.
func readFields(r *bufio.Reader) (has fields, err error) {
	trace := ""
	for {
		line, whole, err := readLine(r)
		switch {
		case err != nil:
			return fields{}, err
		case line == "":
			has.id = cmp.Or(has.id, trace)
			return has, nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return fields{}, &badRequest{http.StatusBadRequest, "a header field has no name"}
		}
		switch value = strings.Trim(value, " \t"); {
		case !whole:
		case strings.EqualFold(name, idField):
			has.id = tunnel.CleanID(value)
		case strings.EqualFold(name, "Proxy-Authorization"):
			has.token = bearer(value)
		case strings.EqualFold(name, "traceparent"):
			trace, has.span = tunnel.TraceParent(value)
		}
		for !whole {
			if _, whole, err = readLine(r); err != nil {
				return fields{}, err
			}
		}
	}
}

// bearer is the token of a field's value; "": it has another scheme.
func bearer(value string) string {
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

// readLine reads up to the end of a line, or as much as fits; whole reports
// which. It does not return the line end itself, CRLF or LF.
func readLine(r *bufio.Reader) (line string, whole bool, err error) {
	b, err := r.ReadSlice('\n')
	switch {
	case err == nil:
		return string(bytes.TrimSuffix(b[:len(b)-1], []byte("\r"))), true, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return string(b), false, nil
	default:
		return "", false, err
	}
}
