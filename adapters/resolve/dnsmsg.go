package resolve

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/nameserver"
)

const (
	// maxCNAME is how many aliases are followed within one response; real
	// chains of content networks have up to six or so.
	maxCNAME = 12

	// maxRecords is how many records of one response are read. A response of 64
	// KiB can hold 4,000; the first are enough.
	maxRecords = 256
)

var (
	errBadMessage = errors.New("DNS response is malformed or answers another question")
	errServFail   = errors.New("DNS server could not answer")
)

// reply is the answer of one DNS response to one question.
type reply struct {
	addrs []netip.Addr
	ttl   time.Duration // how long addrs, or their absence, may be kept
	gone  bool          // the name does not exist, for any kind of record
	err   error         // errServFail: the server could not answer; addrs is empty
}

// packQuery encodes one question, preceded by room for the length prefix of TCP
// (RFC 1035 §4.2.2).
func packQuery(id uint16, name dnsmessage.Name, kind dnsmessage.Type) ([]byte, error) {
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: kind, Class: dnsmessage.ClassINET}},
	}
	msg, err := query.AppendPack(make([]byte, 2, 2+512))
	if err != nil {
		return nil, err
	}
	n := len(msg) - 2
	msg[0], msg[1] = byte(n>>8), byte(n)
	return msg, nil
}

// parseReply reads a response to a question for name and kind. A non-nil error
// means that it is not one, and that its connection must not be trusted.
func parseReply(msg []byte, name dnsmessage.Name, kind dnsmessage.Type) (reply, error) {
	var p dnsmessage.Parser
	head, err := p.Start(msg)
	if err != nil || !head.Response || head.OpCode != 0 {
		return reply{}, errBadMessage
	}
	q, err := p.Question()
	if err != nil || q.Type != kind || q.Class != dnsmessage.ClassINET || !strings.EqualFold(q.Name.String(), name.String()) {
		return reply{}, errBadMessage
	}
	if err := p.SkipAllQuestions(); err != nil {
		return reply{}, errBadMessage
	}
	switch head.RCode {
	case dnsmessage.RCodeSuccess:
		out, err := parseAnswers(&p, name, kind)
		if err == nil && head.Truncated && len(out.addrs) == 0 {
			return reply{err: fmt.Errorf("%w: its answer is cut off", errServFail)}, nil
		}
		return out, err
	case dnsmessage.RCodeNameError:
		return reply{ttl: negativeTTL(&p), gone: true}, nil
	default:
		return reply{err: fmt.Errorf("%w: %s", errServFail, cmp.Or(rcodes[head.RCode], head.RCode.String()))}, nil
	}
}

// rcodes describes the codes of a server that cannot answer (RFC 1035 §4.1.1);
// codes that are missing here are shown as numbers.
var rcodes = map[dnsmessage.RCode]string{
	dnsmessage.RCodeFormatError: "it considers the question malformed", dnsmessage.RCodeServerFailure: "server failure",
	dnsmessage.RCodeNotImplemented: "not implemented", dnsmessage.RCodeRefused: "query refused",
}

// records holds the answers of one response, by the name that owns them.
type records struct {
	kind    dnsmessage.Type
	addrs   map[string][]netip.Addr
	aliases map[string]string
	ttls    map[string]time.Duration // the least TTL of the owner's records
}

// parseAnswers follows the aliases from name to the addresses. Records may be
// in any order.
func parseAnswers(p *dnsmessage.Parser, name dnsmessage.Name, kind dnsmessage.Type) (reply, error) {
	r := records{kind: kind, addrs: map[string][]netip.Addr{}, aliases: map[string]string{}, ttls: map[string]time.Duration{}}
	for range maxRecords {
		more, err := r.read(p)
		if err != nil {
			return reply{}, errBadMessage
		}
		if !more {
			break
		}
	}
	owner, ttl := lower(name), maxPositive
	for range maxCNAME {
		if found := r.addrs[owner]; len(found) > 0 {
			return reply{addrs: found, ttl: min(ttl, r.ttls[owner])}, nil
		}
		target, ok := r.aliases[owner]
		if !ok {
			return reply{ttl: min(negativeTTL(p), ttl)}, nil
		}
		owner, ttl = target, min(ttl, r.ttls[owner])
	}
	return reply{err: fmt.Errorf("%w: its aliases form a loop", errServFail)}, nil
}

// read adds one record; more is false at the end.
func (r *records) read(p *dnsmessage.Parser) (more bool, err error) {
	head, err := p.AnswerHeader()
	if err != nil {
		if err == dnsmessage.ErrSectionDone {
			err = nil
		}
		return false, err
	}
	owner := lower(head.Name)
	switch {
	case head.Class == dnsmessage.ClassINET && head.Type == dnsmessage.TypeCNAME:
		alias, err := p.CNAMEResource()
		if err != nil {
			return false, err
		}
		r.aliases[owner] = lower(alias.CNAME)
	case head.Class == dnsmessage.ClassINET && head.Type == r.kind:
		addr, err := nameserver.Address(p, r.kind)
		if err != nil {
			return false, err
		}
		if len(r.addrs[owner]) < maxAddresses {
			r.addrs[owner] = append(r.addrs[owner], addr)
		}
	default:
		return true, p.SkipAnswer()
	}
	if known, ok := r.ttls[owner]; !ok || seconds(head.TTL) < known {
		r.ttls[owner] = seconds(head.TTL)
	}
	return true, nil
}

// negativeTTL returns how long an absence may be kept (RFC 2308 §5): the lesser
// of the SOA record's TTL and its minimum, or a default if there is no SOA
// record.
func negativeTTL(p *dnsmessage.Parser) time.Duration {
	if err := p.SkipAllAnswers(); err != nil {
		return defaultNegative
	}
	for range maxRecords {
		head, err := p.AuthorityHeader()
		if err != nil {
			break
		}
		if head.Type != dnsmessage.TypeSOA {
			if p.SkipAuthority() != nil {
				break
			}
			continue
		}
		soa, err := p.SOAResource()
		if err != nil {
			break
		}
		return min(seconds(head.TTL), seconds(soa.MinTTL), maxNegative)
	}
	return defaultNegative
}

// seconds reads a TTL; one with its highest bit set counts as 0 (RFC 2181 §8).
func seconds(ttl uint32) time.Duration {
	if ttl > 1<<31-1 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

func lower(n dnsmessage.Name) string { return strings.ToLower(n.String()) }
