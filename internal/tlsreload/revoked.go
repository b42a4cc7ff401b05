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

// revoked are the certificates that revocation lists name: serial numbers by issuer, both as
// in DER. A nil one names none.
type revoked map[string]map[string]struct{}

// ErrRevoked refuses a peer whose certificate a revocation list names.
var ErrRevoked = errors.New("its certificate, or that of its issuer, was revoked")

// check returns ErrRevoked if a certificate of a chain is named.
func (r revoked) check(chain []*x509.Certificate) error {
	if r != nil && slices.ContainsFunc(chain, func(cert *x509.Certificate) bool {
		_, named := r[string(cert.RawIssuer)][string(cert.SerialNumber.Bytes())]
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

// addLists adds the lists of a file, each of which one of the CAs has signed. It returns when
// the first of them is to be replaced; zero: none says so.
func (r revoked) addLists(file blob, cas []*x509.Certificate) (until time.Time, err error) {
	lists, err := file.lists()
	for _, list := range lists {
		if err = r.add(list, cas); err != nil {
			break
		}
		if next := list.NextUpdate; !next.IsZero() && (until.IsZero() || next.Before(until)) {
			until = next
		}
	}
	if err != nil {
		err = &FileError{What: file.what, Path: file.path, Err: tidy(err)}
	}
	return until, err
}

func (r revoked) add(list *x509.RevocationList, cas []*x509.Certificate) error {
	signed := func(ca *x509.Certificate) bool {
		return bytes.Equal(ca.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(ca) == nil
	}
	if !slices.ContainsFunc(cas, signed) {
		return fmt.Errorf("the list of %q is signed by none of the CAs that peers' certificates must chain to", list.Issuer)
	}
	for _, e := range list.Extensions {
		if e.Id.Equal(deltaList) {
			return errors.New("it is a delta, of which the rest is missing: a whole list is needed")
		}
	}
	serials := r[string(list.RawIssuer)]
	if serials == nil {
		serials = make(map[string]struct{}, len(list.RevokedCertificateEntries))
		r[string(list.RawIssuer)] = serials
	}
	for _, entry := range list.RevokedCertificateEntries {
		for _, e := range entry.Extensions {
			if e.Id.Equal(otherIssuer) {
				return errors.New("it names certificates of other issuers than its own, which is not supported")
			}
		}
		serials[string(entry.SerialNumber.Bytes())] = struct{}{}
	}
	return nil
}

// lists parses a file: lists in PEM, or one in DER.
func (b blob) lists() (lists []*x509.RevocationList, err error) {
	block, rest := pem.Decode(b.data)
	if block == nil {
		list, err := x509.ParseRevocationList(b.data)
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
	if len(lists) != bytes.Count(b.data, []byte("-----BEGIN")) {
		return nil, errors.New("not all that begins with -----BEGIN is a whole PEM block; is the file cut short?")
	}
	return lists, nil
}
