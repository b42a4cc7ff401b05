package adapters

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"
	"time"

	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// rereadCAs is how often bundles for https:// proxies are read again. Slower
// than certificates of our own, since distributions have hundreds of files.
const rereadCAs = 30 * time.Second

// proxyCAs vouch for https:// proxies: the system's roots and bundles, followed
// live. They are read when the first of them is needed: a distribution's
// hundreds of CAs take longer to parse than all the rest of a start.
type proxyCAs struct {
	used bool // by any proxy; fixed once New returns
	load func() (*tlsreload.Source, error)
}

func newProxyCAs(opt Options) *proxyCAs {
	return &proxyCAs{load: sync.OnceValues(func() (*tlsreload.Source, error) {
		files := tlsreload.Files{MoreCAs: append(slices.Clone(opt.HTTPS.CACertPaths), opt.proxyCADirs...)}
		return tlsreload.New(files, tlsreload.Options{Name: "proxy CAs", Lenient: true, SystemRoots: true, Interval: rereadCAs, Log: opt.Log})
	})}
}

// client is the configuration for p, nil if it is spoken to without TLS.
func (c *proxyCAs) client(p *connect.Proxy) *tls.Config {
	if p == nil || !p.TLS {
		return nil
	}
	c.used = true
	return &tls.Config{
		ServerName:                  p.Host,
		NextProtos:                  []string{"http/1.1"},
		MinVersion:                  tls.VersionTLS12,
		DynamicRecordSizingDisabled: true,
		ClientSessionCache:          tls.NewLRUClientSessionCache(0),
		// The check is not dropped: VerifyConnection does it, for resumed
		// sessions too, against the CAs of the day.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			source, err := c.load()
			if err == nil {
				err = source.Ready()
			}
			if err != nil {
				return &tunnel.DialError{Failure: tunnel.FailUnavailable, Reason: "the CAs to check its certificate cannot be read", Err: err}
			}
			return source.Client(p.Host).VerifyConnection(state)
		},
	}
}

// run follows the files until ctx ends.
func (c *proxyCAs) run(ctx context.Context) {
	if source, err := c.load(); err == nil {
		source.Run(ctx)
	}
}
