package diagnose

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/files"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
)

// expirySoon is the part of its lifetime from which a certificate is reported: less than
// a tenth is left. cert-manager and its like renew after two thirds.
const expirySoon = 10

// checkFiles checks the certificate files.
func (c *pathChecker) checkFiles() bool {
	c.group = "certificates"
	files := c.opts.Sidecar.Files
	ok := true
	if files.CA == "" {
		c.ok("CA", "none was given; the system's are trusted")
	} else if !c.checkCA(files) {
		ok = false
	}
	switch {
	case files.Cert == "" && files.Key == "" && c.opts.Sidecar.TokenFile != "":
		ok = c.checkToken() && ok
	case files.Cert == "" && files.Key == "":
		c.warn("client certificate", "none was given", "Servers want one from clients that do not come over a unix socket; see --tls-cert-path and --tls-key-path, or --token-path.")
	case files.Cert == "" || files.Key == "":
		ok = c.fail("client certificate", "--tls-cert-path and --tls-key-path go together, and only one was given", "Give both.")
	case !c.checkPair(files):
		ok = false
	}
	return ok
}

// checkToken reads the token that takes the certificate's place. Whether it is accepted, the
// server says.
func (c *pathChecker) checkToken() bool {
	path := c.opts.Sidecar.TokenFile
	if _, err := files.Token(path)(); err != nil {
		return c.unreadable("client token", path, err)
	}
	c.ok("client token", path+", in place of a certificate")
	return true
}

// load loads the files as a sidecar does.
func (c *pathChecker) load() bool {
	var err error
	c.source, err = tlsreload.New(c.opts.Sidecar.Files, tlsreload.Options{Name: "check", Peer: c.opts.Sidecar.Peers.Peer(pki.RoleServer), Log: c.quiet})
	if err != nil {
		return c.fail("files", err.Error(), "They changed a moment ago; try again.")
	}
	return true
}

// unreadable fails the step for the error of a file.
func (r *report) unreadable(step, path string, err error) bool {
	if file, ok := errors.AsType[*tlsreload.FileError](err); ok {
		path, err = file.Path, file.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r.fail(step, path+" does not exist", "Check that the secret or config map is mounted there, and that it has this key.")
	case errors.Is(err, fs.ErrPermission):
		return r.fail(step, path+" may not be read", "Check its owner and mode, and the pod's fsGroup.")
	case errors.Is(err, tlsreload.ErrNoCertificate):
		return r.fail(step, path+": there is no certificate in it", "It must hold PEM blocks of type CERTIFICATE.")
	default:
		return r.fail(step, path+": "+err.Error(), "Check the path, and what is in the file.")
	}
}

func (c *pathChecker) checkCA(files tlsreload.Files) bool {
	certs, err := files.TrustedCAs()
	if err != nil {
		return c.unreadable("CA", files.CA, err)
	}
	c.cas = certs
	if !slices.ContainsFunc(certs, func(ca *x509.Certificate) bool { return c.now().Before(ca.NotAfter) && !c.now().Before(ca.NotBefore) }) {
		return c.validity("CA", files.CA, certs[0], "Issue a new CA and certificates, and roll both out.")
	}
	last := slices.MaxFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	if left, soon := expiresSoon(last, c.now()); soon {
		c.warn("CA", fmt.Sprintf("%s expires in %s, and all certificates with it", files.CA, left), "Make a new one, and trust both while certificates are replaced.")
		return true
	}
	c.ok("CA", dated(certs))
	return true
}

func (c *pathChecker) checkPair(files tlsreload.Files) bool {
	const step = "client certificate"
	certPath := files.Cert
	certs, err := files.Chain()
	var file *tlsreload.FileError
	switch {
	case errors.As(err, &file) && file.Mismatch:
		return c.fail("client key", files.Key+" does not fit "+certPath+": "+file.Err.Error(), "Both must come from the same secret. This can happen for a moment while they are replaced.")
	case errors.As(err, &file) && file.Path == files.Key:
		return c.unreadable("client key", files.Key, err)
	case err != nil:
		return c.unreadable(step, certPath, err)
	}
	leaf := certs[0]
	if !c.validity(step, certPath, leaf, "Renew it; the sidecar takes the new files without a restart.") {
		return false
	}
	if len(leaf.ExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return c.fail(step, certPath+" is not for clients: its extended key usage lacks clientAuth", "Use the client certificate, or issue one with that usage.")
	}
	if err := (pki.RoleRule{Want: pki.RoleClient}).Check(leaf); err != nil {
		return c.fail(step, certPath+": "+err.Error(), "Use a client certificate, such as client.crt of `konnectivity certs`.")
	}
	if left, soon := expiresSoon(leaf, c.now()); soon {
		c.warn(step, fmt.Sprintf("%s expires in %s", certPath, left), "Find out why it was not renewed in time.")
		return true
	}
	c.ok(step, names(certs[:1])+role(leaf)+until(leaf.NotAfter)+", fits its key")
	return true
}

// expiresSoon reports whether a certificate should have been renewed by now, and how long
// it is still valid.
func expiresSoon(cert *x509.Certificate, now time.Time) (left string, soon bool) {
	span := cert.NotAfter.Sub(now)
	return status.Span(span), span < cert.NotAfter.Sub(cert.NotBefore)/expirySoon
}

// role is the role of a certificate as part of a sentence; "" if it has none.
func role(cert *x509.Certificate) string {
	h, err := pki.HolderOf(cert)
	if err != nil || h.Role == "" {
		return ""
	}
	return ", role " + string(h.Role)
}

// validity fails the step if cert is not valid now.
func (c *pathChecker) validity(step, what string, cert *x509.Certificate, renew string) bool {
	cause, hint := invalidTime(what, cert, c.now(), renew)
	if cause == "" {
		return true
	}
	return c.fail(step, cause, hint)
}

// invalidTime describes why cert is not valid now; cause is "" if it is.
func invalidTime(what string, cert *x509.Certificate, now time.Time, renew string) (cause, hint string) {
	switch {
	case now.After(cert.NotAfter):
		return fmt.Sprintf("%s expired on %s", what, date(cert.NotAfter)), renew + " If it should still be valid, this machine's clock is wrong."
	case now.Before(cert.NotBefore):
		return fmt.Sprintf("%s is not valid before %s, and this machine's clock says %s", what, date(cert.NotBefore), date(now)),
			"The clock of this machine, or of the one that issued it, is wrong."
	}
	return "", ""
}

// names lists the names of certificates.
func names(certs []*x509.Certificate) string {
	var all []string
	for _, c := range certs {
		all = append(all, pki.Name(c))
	}
	return strings.Join(all, ", ")
}

// dated lists the names of certificates, each with the end of its validity.
func dated(certs []*x509.Certificate) string {
	var all []string
	for _, c := range certs {
		all = append(all, pki.Name(c)+until(c.NotAfter))
	}
	return strings.Join(all, "; ")
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// until is the end of a certificate's validity as part of a sentence.
func until(t time.Time) string { return ", valid until " + date(t) }
