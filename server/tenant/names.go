package tenant

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const (
	// maxName bounds a tenant's name, which is a metric's label and a part of
	// log lines. It is a DNS label's, as that of a namespace.
	maxName = 63

	maxServerName = 253 // RFC 1035 §2.3.4, in text
)

const labelLetters = "abcdefghijklmnopqrstuvwxyz0123456789-"

// CheckName returns an error unless name is fit for a tenant: it is the name of its
// folder, and formed like that of a namespace.
func CheckName(name string) error {
	if len(name) > maxName || !isLabel(name) {
		return fmt.Errorf("%.80q is no name for a tenant: want up to %d lower-case letters, digits and '-', with no '-' at the ends", name, maxName)
	}
	return nil
}

// isLabel says whether s, in lower case, is a label of a DNS name.
func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, labelLetters) == "" && s[0] != '-' && s[len(s)-1] != '-'
}

// validName returns an error unless name is a server name in normal form.
func validName(name string) error {
	switch _, err := netip.ParseAddr(name); {
	case name == "":
		return errors.New("a name is empty")
	case err == nil:
		return fmt.Errorf("%q is an address, and clients name none in the TLS handshake: want a DNS name", name)
	case strings.Contains(name, "*"):
		return fmt.Errorf("%q: wildcards are not accepted: list each name", name)
	case len(name) > maxServerName:
		return fmt.Errorf("%.80q… is longer than %d characters", name, maxServerName)
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) {
			return fmt.Errorf("%.300q is no DNS name", name)
		}
	}
	return nil
}

// plainName returns an error unless file is the name of a file in a tenant's folder.
func plainName(file string) error {
	if file == "" || len(file) > 255 || strings.HasPrefix(file, ".") || strings.ContainsAny(file, "/\\\x00:") {
		return fmt.Errorf("%.300q: want the plain name of a file in the tenant's folder", file)
	}
	return nil
}
