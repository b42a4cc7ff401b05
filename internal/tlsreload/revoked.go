package tlsreload

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Lists are what revocation lists say. They do not change, and may be used by any number of
// goroutines; nil ones name no certificate.
type Lists struct {
	// Until is when the first of the lists is to be replaced; zero: none says so.
	Until time.Time

	gone map[string]map[string]struct{} // serial numbers by issuer, both as in DER
}

// ErrRevoked refuses a peer whose certificate a revocation list names.
var ErrRevoked = errors.New("its certificate, or that of its issuer, was revoked")

// OutdatedLists is logged once when Until has passed: the lists count all the same.
const OutdatedLists = "revocation list is out of date: what was revoked since is not known; replace it"

// Check returns ErrRevoked if a certificate of a chain is named.
func (l *Lists) Check(chain []*x509.Certificate) error {
	if l != nil && slices.ContainsFunc(chain, func(cert *x509.Certificate) bool {
		_, named := l.gone[string(cert.RawIssuer)][string(cert.SerialNumber.Bytes())]
		return named
	}) {
		return ErrRevoked
	}
	return nil
}

// Extensions of a list that change what it means (RFC 5280 §5.2.4, §5.3.3).
var (
	deltaList   = asn1.ObjectIdentifier{2, 5, 29, 27}
	otherIssuer = asn1.ObjectIdentifier{2, 5, 29, 29}
)

// ParseLists reads revocation lists, PEM or one in DER, for sides that have CAs of their own.
// Each side gets the lists that one of its CAs has signed, and never nil. A list that none of
// them has signed is an error; errors do not name the file.
func ParseLists(data []byte, sides ...[]*x509.Certificate) ([]*Lists, error) {
	all, err := parseLists(data)
	if err != nil {
		return nil, tidy(err)
	}
	out := make([]*Lists, len(sides))
	for i := range sides {
		out[i] = &Lists{gone: make(map[string]map[string]struct{})}
	}
	for _, list := range all {
		known := false
		for i, cas := range sides {
			if !signed(list, cas) {
				continue
			}
			known = true
			if err := out[i].add(list); err != nil {
				return nil, err
			}
		}
		if !known {
			return nil, fmt.Errorf("the list of %q is signed by none of the CAs that peers' certificates must chain to", list.Issuer)
		}
	}
	return out, nil
}

// signed reports whether one of the CAs has signed a list.
func signed(list *x509.RevocationList, cas []*x509.Certificate) bool {
	return slices.ContainsFunc(cas, func(ca *x509.Certificate) bool {
		return bytes.Equal(ca.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(ca) == nil
	})
}

func (l *Lists) add(list *x509.RevocationList) error {
	for _, e := range list.Extensions {
		if e.Id.Equal(deltaList) {
			return errors.New("it is a delta, of which the rest is missing: a whole list is needed")
		}
	}
	serials := l.gone[string(list.RawIssuer)]
	if serials == nil {
		serials = make(map[string]struct{}, len(list.RevokedCertificateEntries))
		l.gone[string(list.RawIssuer)] = serials
	}
	for _, entry := range list.RevokedCertificateEntries {
		for _, e := range entry.Extensions {
			if e.Id.Equal(otherIssuer) {
				return errors.New("it names certificates of other issuers than its own, which is not supported")
			}
		}
		serials[string(entry.SerialNumber.Bytes())] = struct{}{}
	}
	if next := list.NextUpdate; !next.IsZero() && (l.Until.IsZero() || next.Before(l.Until)) {
		l.Until = next
	}
	return nil
}

// parseLists reads lists in PEM, or one in DER.
func parseLists(data []byte) (lists []*x509.RevocationList, err error) {
	block, rest := pem.Decode(data)
	if block == nil {
		list, err := x509.ParseRevocationList(data)
		if err != nil {
			return nil, errors.New("it has no revocation list, neither as PEM nor as DER")
		}
		return []*x509.RevocationList{list}, nil
	}
	for ; block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			return nil, fmt.Errorf("it has a PEM block %q; want X509 CRL alone", block.Type)
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w (version 2 is needed: with openssl, a crlnumber in its configuration)", err)
		}
		lists = append(lists, list)
	}
	// Within a line, too, as after a byte order mark: what a list that is left out names would be
	// admitted.
	if len(lists) != bytes.Count(data, []byte("-----BEGIN")) {
		return nil, errCut
	}
	return lists, nil
}
