package audit

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"konnectivity/internal/logging"
	"konnectivity/internal/policy"
	"konnectivity/tunnel"
)

// Version is the version of the schema (docs/audit.schema.json). Fields may be added to
// it; it changes where one is renamed, goes or means something else.
const Version = 1

// The events.
const (
	opened  = "opened"
	refused = "refused"
	closed  = "closed"
	dropped = "dropped"
)

// maxText bounds a text in bytes, before it is escaped. Addresses and ids are shorter; the
// reasons of peers need not be.
const maxText = 1024

// record is what there is to say of a connection at one moment.
type record struct {
	event string
	at    time.Time
	flow  *tunnel.Flow

	took    time.Duration     // of the dial, or of the connection; of no opening
	failed  *tunnel.DialError // of a refusal
	resumed bool              // another process, or an earlier link, had the connection before

	// Of an end.

	up, down int64
	resumes  int
	err      error // nil: in order
}

// appendHead appends what all records of a process share.
func appendHead(b []byte, component, name string) []byte {
	b = appendText(b, "component", component)
	return appendText(b, "name", name)
}

// appendStart appends the beginning of a record, without the closing brace.
func appendStart(b, head []byte, event string, at time.Time) []byte {
	b = append(b, `{"audit":`...)
	b = strconv.AppendInt(b, Version, 10)
	b = append(b, `,"time":"`...)
	b = at.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	b = appendText(b, "event", event)
	return append(b, head...)
}

// appendRecord appends r as a line of JSON.
func appendRecord(b, head []byte, r *record) []byte {
	f := r.flow
	b = appendStart(b, head, r.event, r.at)
	b = appendText(b, "id", f.ID)
	b = appendText(b, "tenant", f.Tenant())
	b = appendIdentity(b, f.Who())
	b = appendText(b, "front", f.Front)
	b = appendAddr(b, "source", f.Source)
	b = appendText(b, "previous", f.Origin.Server)
	b = appendText(b, "destination", f.Address)
	b = appendReached(b, f)
	b = appendHop(b, f)
	b = appendText(b, "route", string(f.Route))
	b = appendText(b, "rule", r.rule())
	if r.resumed {
		b = append(b, `,"resumed":true`...)
	}
	switch r.event {
	case refused:
		b = appendText(b, "failure", r.failed.Failure.Label())
		b = appendText(b, "reason", r.failed.Text())
	case closed:
		b = appendEnd(b, r)
	}
	if r.event != opened {
		b = append(b, `,"seconds":`...)
		b = strconv.AppendFloat(b, max(0, r.took.Seconds()), 'f', 6, 64)
	}
	return append(b, "}\n"...)
}

// rule is the rule of a policy file that allowed the connection, denied it or, in the record
// of its end, ended it.
func (r *record) rule() string {
	switch {
	case r.failed != nil:
		return denier(r.failed)
	case r.err != nil && tunnel.CodeOf(r.err) == tunnel.CodePolicy:
		return denier(r.err)
	default:
		return r.flow.Rule
	}
}

// denier is the rule that denied what failed with err; "": none did, or one of a flag.
func denier(err error) string {
	if denial := new(policy.Denial); errors.As(err, &denial) {
		return denial.Rule
	}
	return ""
}

// appendEnd appends what only an end has.
func appendEnd(b []byte, r *record) []byte {
	b = appendNumber(b, "upBytes", r.up)
	b = appendNumber(b, "downBytes", r.down)
	if r.resumes > 0 {
		b = appendNumber(b, "resumes", int64(r.resumes))
	}
	switch {
	case r.flow.HandedOver:
		return appendText(b, "end", "handed_over")
	case r.err == nil:
		return appendText(b, "end", "complete")
	}
	b = appendText(b, "end", tunnel.CodeOf(r.err).Label())
	if loss := tunnel.LossOf(r.err); loss != tunnel.LossUnknown {
		b = appendText(b, "loss", loss.Label())
	}
	return b
}

// appendDropped appends a record of n lines that were dropped.
func appendDropped(b, head []byte, at time.Time, n int64) []byte {
	b = appendStart(b, head, dropped, at)
	b = appendNumber(b, "dropped", n)
	return append(b, "}\n"...)
}

// appendReached appends the address that was dialed, where it is known and was not
// asked for.
func appendReached(b []byte, f *tunnel.Flow) []byte {
	before := len(b)
	b = appendAddr(b, "resolved", f.Far)
	if len(b) == before {
		b = appendText(b, "resolved", f.Resolved)
	}
	const field = `,"resolved":"`
	if len(b) > before && string(b[before+len(field):len(b)-1]) == f.Address {
		return b[:before]
	}
	return b
}

// appendHop appends the hop after this process: of a connection that outlives its links,
// the newest.
func appendHop(b []byte, f *tunnel.Flow) []byte {
	hop := f.Hop
	if f.Resumable != nil {
		if now := f.Resumable.ResumeStatus().Hop; now != (tunnel.Hop{}) {
			hop = now
		}
	}
	b = appendText(b, "nextRole", hop.Role)
	return appendText(b, "next", hop.ID)
}

// appendAddr appends an address, unless there is none.
func appendAddr(b []byte, name string, a net.Addr) []byte {
	switch a := a.(type) {
	case nil:
		return b
	case *net.TCPAddr:
		if a == nil {
			return b
		}
		var room [64]byte
		at := a.AddrPort()
		return appendText(b, name, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).AppendTo(room[:0]))
	default:
		return appendText(b, name, a.String())
	}
}

// appendIdentity appends the names of who, unless it is not known. They are not cut.
func appendIdentity(b []byte, who tunnel.Identity) []byte {
	if who == "" {
		return b
	}
	b = append(b, `,"identity":[`...)
	for name := range strings.SplitSeq(string(who), "\n") {
		b = append(appendQuoted(b, name), ',')
	}
	b[len(b)-1] = ']'
	return b
}

func appendNumber(b []byte, name string, n int64) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return strconv.AppendInt(b, n, 10)
}

// appendText appends at most maxText bytes of a field, unless it is empty. name needs no escapes.
func appendText[T string | []byte](b []byte, name string, value T) []byte {
	if len(value) == 0 {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendQuoted(b, value[:min(len(value), maxText)])
}

// appendQuoted appends s as a JSON string. Invisible characters, which could control the
// terminal that shows the record, are escaped. Bytes that are no UTF-8 become U+FFFD, as
// encoding/json has it.
func appendQuoted[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	plain := 0 // of s, what needs no escape and has yet to be appended
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c <= '~' && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := rune(c), 1
		if c >= utf8.RuneSelf {
			var end = min(len(s), i+utf8.UTFMax)
			r, size = utf8.DecodeRuneInString(string(s[i:end]))
			if (r != utf8.RuneError || size > 1) && !logging.Hidden(r) {
				i += size
				continue
			}
		}
		b = append(b, s[plain:i]...)
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = logging.AppendEscape(b, r)
		}
		i += size
		plain = i
	}
	b = append(b, s[plain:]...)
	return append(b, '"')
}
