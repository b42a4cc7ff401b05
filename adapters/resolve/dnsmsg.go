package resolve

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxCNAME is how many aliases are followed within one response; real
	// chains of content networks have up to six or so.
	maxCNAME = 12

	// maxRecords is how many records of one response are looked at. A response
	// of 64 KiB can hold 4,000; whoever has that many has enough in the first.
	maxRecords = 256
)

var (
	errBadMessage = errors.New("DNS response is malformed or answers another question")
	errServFail   = errors.New("DNS server could not answer")
)

// reply is what one DNS response says about one question.
type reply struct {
	addrs []netip.Addr
	ttl   time.Duration // how long it may be kept; of addrs, or of their absence
	gone  bool          // the name does not exist, for any kind of record
	err   error         // errServFail: the server could not tell; addrs is empty
}

// packQuery encodes one question with room for the length prefix that TCP
// wants (RFC 1035 §4.2.2) in front.
func packQuery(id uint16, name dnsmessage.Name, kind dnsmessage.Type) ([]byte, error) {
	b := dnsmessage.NewBuilder(make([]byte, 2, 2+512), dnsmessage.Header{ID: id, RecursionDesired: true})
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(dnsmessage.Question{Name: name, Type: kind, Class: dnsmessage.ClassINET}); err != nil {
		return nil, err
	}
	msg, err := b.Finish()
	if err != nil {
		return nil, err
	}
	n := len(msg) - 2
	msg[0], msg[1] = byte(n>>8), byte(n)
	return msg, nil
}

// parseReply reads a response to a question for name and kind. A non-nil error
// means that it is none; the connection that brought it is not to be trusted.
func parseReply(msg []byte, name dnsmessage.Name, kind dnsmessage.Type) (reply, error) {
	var p dnsmessage.Parser
	head, err := p.Start(msg)
	if err != nil || !head.Response || head.OpCode != 0 {
		return reply{}, errBadMessage
	}
	q, err := p.Question()
	if err != nil || q.Type != kind || q.Class != dnsmessage.ClassINET || !sameName(q.Name, name) {
		return reply{}, errBadMessage
	}
	if err := p.SkipAllQuestions(); err != nil {
		return reply{}, errBadMessage
	}
	switch head.RCode {
	case dnsmessage.RCodeSuccess:
		return parseAnswers(&p, name, kind)
	case dnsmessage.RCodeNameError:
		return reply{ttl: negativeTTL(&p), gone: true}, nil
	default:
		return reply{err: fmt.Errorf("%w: %v", errServFail, head.RCode)}, nil
	}
}

// parseAnswers follows the aliases from name to the addresses. Records may come
// in any order.
func parseAnswers(p *dnsmessage.Parser, name dnsmessage.Name, kind dnsmessage.Type) (reply, error) {
	type alias struct {
		target string
		ttl    time.Duration
	}
	aliases := make(map[string]alias)
	addrs := make(map[string][]netip.Addr)
	ttls := make(map[string]time.Duration)
	for range maxRecords {
		head, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil {
			return reply{}, errBadMessage
		}
		owner := lower(head.Name)
		switch {
		case head.Class == dnsmessage.ClassINET && head.Type == dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return reply{}, errBadMessage
			}
			aliases[owner] = alias{lower(r.CNAME), seconds(head.TTL)}
		case head.Class == dnsmessage.ClassINET && head.Type == kind:
			addr, err := readAddr(p, kind)
			if err != nil {
				return reply{}, errBadMessage
			}
			if len(addrs[owner]) < MaxAddresses {
				addrs[owner] = append(addrs[owner], addr)
			}
			if known, ok := ttls[owner]; !ok || seconds(head.TTL) < known {
				ttls[owner] = seconds(head.TTL)
			}
		default:
			if err := p.SkipAnswer(); err != nil {
				return reply{}, errBadMessage
			}
		}
	}
	owner, ttl := lower(name), maxPositive
	for range maxCNAME {
		if found := addrs[owner]; len(found) > 0 {
			return reply{addrs: found, ttl: min(ttl, ttls[owner])}, nil
		}
		next, ok := aliases[owner]
		if !ok {
			return reply{ttl: min(negativeTTL(p), ttl)}, nil
		}
		owner, ttl = next.target, min(ttl, next.ttl)
	}
	return reply{err: fmt.Errorf("%w: its aliases form a loop", errServFail)}, nil
}

func readAddr(p *dnsmessage.Parser, kind dnsmessage.Type) (netip.Addr, error) {
	if kind == dnsmessage.TypeA {
		r, err := p.AResource()
		return netip.AddrFrom4(r.A), err
	}
	r, err := p.AAAAResource()
	return netip.AddrFrom16(r.AAAA), err
}

// negativeTTL is how long an absence may be kept (RFC 2308 §5): the lesser of
// the SOA record's TTL and its minimum. Without one, a default.
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

func sameName(a, b dnsmessage.Name) bool { return strings.EqualFold(a.String(), b.String()) }
