package tlsreload

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// SystemCAs names what verifies peers where no CA is given.
const SystemCAs = "the system's CAs"

// ProxyCAs names what verifies a sidecar's https:// proxies.
const ProxyCAs = SystemCAs + " or --proxy-ca-cert-path"

// Trusted names what f verifies peers by. flag is that of f.CA.
func (f Files) Trusted(flag string) string {
	if f.CA == "" {
		return SystemCAs + ", which count without " + flag
	}
	return flag + "=" + f.CA
}

// Untrusted explains to an operator why a peer's certificate could not be
// verified; "" for any other error. crypto/x509's own sentences say neither
// what the certificate is valid for nor that a clock may be wrong. trusted
// names the CAs that were tried.
func Untrusted(err error, trusted string) string {
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &host) && host.Certificate != nil:
		return fmt.Sprintf("its certificate is not for %s but for %s", host.Host, GoodFor(host.Certificate))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil: // or is not valid yet
		return fmt.Sprintf("its certificate is valid only from %s until %s: renew it, or correct this machine's clock, which says %s",
			minute(invalid.Cert.NotBefore), minute(invalid.Cert.NotAfter), minute(time.Now()))
	case errors.As(err, &unknown) && unknown.Cert != nil:
		return fmt.Sprintf("its certificate was issued by %q, which is not in %s", unknown.Cert.Issuer.String(), trusted)
	default:
		return ""
	}
}

// maxNames bounds how many names of a certificate are listed.
const maxNames = 8

// GoodFor lists the names that a certificate is valid for.
func GoodFor(cert *x509.Certificate) string {
	names := append([]string{}, cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	switch {
	case len(names) == 0:
		return "no name at all"
	case len(names) > maxNames:
		names = append(names[:maxNames], "more")
	}
	return strings.Join(names, ", ")
}

func minute(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
