package tlsreload_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func TestInspect(t *testing.T) {
	d := newDir(t)
	ca, other := newCA(t), newCA(t)
	d.put(issue(t, ca, "one"), ca)
	if cas, err := d.files().TrustedCAs(); err != nil || len(cas) != 1 || !cas[0].Equal(ca.Certificate()) {
		t.Errorf("CAs %v, %v", cas, err)
	}
	if chain, err := d.files().Chain(); err != nil || len(chain) == 0 || chain[0].Subject.CommonName != "one" {
		t.Errorf("chain %v, %v", chain, err)
	}
	for what, c := range map[string]struct {
		change   func()
		path     string
		is       error
		mismatch bool
	}{
		"no certificate":             {func() { d.write("tls.crt", []byte("none")) }, "tls.crt", tlsreload.ErrNoCertificate, false},
		"key of another certificate": {func() { d.write("tls.key", issue(t, other, "two").KeyPEM) }, "tls.key", nil, true},
		"no key":                     {func() { _ = os.Remove(d.file("tls.key")) }, "tls.key", fs.ErrNotExist, false},
	} {
		d.put(issue(t, ca, "one"), ca)
		c.change()
		_, err := d.files().Chain()
		var file *tlsreload.FileError
		if !errors.As(err, &file) || file.Path != d.file(c.path) || file.Mismatch != c.mismatch || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.write("ca.crt", nil)
	testutil.ErrorIs(t, testutil.Err(d.files().TrustedCAs()), tlsreload.ErrNoCertificate, "an empty CA file")
}
