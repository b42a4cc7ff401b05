package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"konnectivity/internal/tlsreload"
	"konnectivity/server/frontend"
)

// byCertificate is the Key of all peers whose certificate decides whose they are.
// It is no tenant's, which have no space after their name, or a digest.
const byCertificate = "by certificate"

// errNotNoted refuses a handshake that would end in the server's own cluster,
// though it is a tenant's.
var errNotNoted = errors.New("whose the connection is cannot be noted on it")

// by is the listener's TLS, as frontends take it; nil: it has none.
func (l Listener) by(choose tlsreload.Choose) func(nextProtos ...string) *tls.Config {
	if l.TLS == nil {
		return nil
	}
	return func(nextProtos ...string) *tls.Config { return l.TLS(choose, nextProtos...) }
}

// lead notes that a handshake leads to a tenant, by guest.
func (t *route) lead(hello *tls.ClientHelloInfo, guest *tlsreload.Guest) (*tlsreload.Guest, error) {
	if !frontend.Own(hello, t, nil) {
		return nil, errNotNoted
	}
	return guest, nil
}

// refuse refuses a handshake, and has the log say why.
func refuse(hello *tls.ClientHelloInfo, err error) (*tlsreload.Guest, error) {
	_ = frontend.Own(hello, nil, err)
	return nil, err
}

// chooser decides by the server name whose a handshake is, or leaves it to the
// certificate. It refuses the names of tenants that are broken or gone: their peers
// must not end up among others. nil: there are no tenants.
func (t *tenants) chooser(side side) tlsreload.Choose {
	if t.dir == nil {
		return nil
	}
	return func(hello *tls.ClientHelloInfo) (*tlsreload.Guest, error) {
		v := t.now.Load()
		spec, known := v.table.Find(hello.ServerName)
		switch {
		case !known:
			return t.unnamed(side, hello, v), nil
		case spec != nil && v.tenants[spec.Name] != nil:
			is := v.tenants[spec.Name]
			return is.lead(hello, is.shared[side])
		case v.table.Closed():
			return refuse(hello, fmt.Errorf("it asked for %.100q, which no tenant has now; the server has had too many names to know whether one had it before, until it is restarted", hello.ServerName))
		default:
			return refuse(hello, fmt.Errorf("it asked for %.100q, whose tenant is broken or was removed", hello.ServerName))
		}
	}
}

// unnamed is for a peer that asks for no tenant's name: where tenants are told by
// certificate, that decides, by the CAs of the moment when it is shown; nil: they
// are not.
func (t *tenants) unnamed(side side, hello *tls.ClientHelloInfo, v *view) *tlsreload.Guest {
	if side.issuers(v.table) == nil {
		return nil
	}
	return &tlsreload.Guest{Key: byCertificate, Bare: side == clients && t.server.clientTokens != nil, Verify: func(chain []*x509.Certificate) error {
		v := t.now.Load()
		issuers := side.issuers(v.table)
		if issuers == nil {
			return errors.New("no tenant is told by certificate any more")
		}
		spec, err := issuers.Find(chain)
		if err != nil {
			return err
		}
		cas := side.cas(spec)
		if err := v.table.Admit(spec, cas, chain[0]); err != nil {
			return err
		}
		if err := cas.Lists.Check(chain); err != nil {
			return err
		}
		is := v.tenants[spec.Name]
		if is == nil {
			return fmt.Errorf("its tenant, %s, is not served", spec.Name)
		}
		_, err = is.lead(hello, nil)
		return err
	}}
}

// chooserAt leads all that come in by a tenant's own port to that tenant, except for
// those that ask for another tenant by name, also by one that it had: a name that leads to
// the wrong port must not lead to the wrong cluster.
func (t *tenants) chooserAt(side side, name string) tlsreload.Choose {
	return func(hello *tls.ClientHelloInfo) (*tlsreload.Guest, error) {
		is, err := t.named(name)
		if err != nil {
			return refuse(hello, err)
		}
		if t.now.Load().table.Others(hello.ServerName, name) {
			return refuse(hello, fmt.Errorf("it came in by the port of the tenant %q, and asked for %.100q, which is not its", name, hello.ServerName))
		}
		if is.own[side] == nil {
			return nil, errors.New("the tenant has given up the port")
		}
		return is.lead(hello, is.own[side])
	}
}

// named is the tenant that connections by its own port or socket belong to.
func (t *tenants) named(name string) (*route, error) {
	if is := t.now.Load().tenants[name]; is != nil {
		return is, nil
	}
	return nil, fmt.Errorf("it came in where the tenant %q listens, which is broken or was removed", name)
}
