package tlsreload_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func TestFollowsRotationOfEverything(t *testing.T) {
	oldCA, newerCA := newCA(t), newCA(t)
	sd, cd := newDir(t), newDir(t)
	sd.put(issue(t, oldCA, "server 1"), oldCA)
	cd.put(issue(t, oldCA, "client 1"), oldCA)
	server, client := source(t, sd.files(), tlsreload.Options{Name: "s"}), source(t, cd.files(), tlsreload.Options{Name: "c"})
	sc, cc := server.Server("h2"), client.Client("server.test", "h2")

	first := mustPass(t, handshake(t, sc, cc))
	if serverCN(first) != "server 1" || clientCN(first) != "client 1" || first.client.NegotiatedProtocol != "h2" {
		t.Fatalf("first handshake: %q, %q, %q", serverCN(first), clientCN(first), first.client.NegotiatedProtocol)
	}
	longS, longC := connect(t, sc, cc)
	defer longS.Close()
	defer longC.Close()
	mustPass(t, finish(longS, longC))

	sd.put(issue(t, newerCA, "server 2"), newerCA)
	reload(t, server)
	if o := handshake(t, sc, cc); o.clientErr == nil || o.serverErr == nil {
		t.Errorf("peers of different CAs got on: client %v, server %v", o.clientErr, o.serverErr)
	}
	cd.put(issue(t, newerCA, "client 2"), newerCA)
	reload(t, client)
	second := mustPass(t, handshake(t, sc, cc))
	testutil.Holds(t, serverCN(second) == "server 2" && clientCN(second) == "client 2",
		"after rotation: %q, %q", serverCN(second), clientCN(second))
	mustPass(t, finish(longS, longC)) // the old connection lives on
}

func reload(t *testing.T, s *tlsreload.Source) {
	t.Helper()
	testutil.NoError(t, s.Reload())
}

// swapMount writes files as the kubelet does: a fresh directory, and a
// symlink that is renamed over the one that was there.
func swapMount(t *testing.T, d dir, version string, files map[string][]byte) {
	t.Helper()
	testutil.NoError(t, os.Mkdir(d.file(".."+version), 0o700))
	for name, data := range files {
		d.write(".."+version+"/"+name, data)
		if _, err := os.Lstat(d.file(name)); errors.Is(err, fs.ErrNotExist) {
			testutil.NoError(t, os.Symlink("..data/"+name, d.file(name)))
		}
	}
	testutil.NoError(t, os.Symlink(".."+version, d.file("..data_tmp")))
	testutil.NoError(t, os.Rename(d.file("..data_tmp"), d.file("..data")))
}

func TestRunFollowsKubernetesMountsWithinAMinute(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	mount := func(version, cn string) {
		p := issue(t, ca, cn)
		swapMount(t, d, version, map[string][]byte{"tls.crt": p.CertPEM, "tls.key": p.KeyPEM, "ca.crt": ca.CertPEM})
	}
	mount("1", "first")
	s := source(t, d.files(), tlsreload.Options{Name: "x"})
	synctest.Test(t, func(t *testing.T) {
		stop := testutil.Start(t, s.Run)
		mount("2", "second")
		time.Sleep(time.Minute)
		synctest.Wait()
		testutil.Equal(t, s.Certificate().Leaf.Subject.CommonName, "second", "the certificate after a minute")
		stop()
	})
}

// Each change is told once, the first good files of a lenient Source included;
// broken ones, and those that have not changed, are not.
func TestOnChangeReportsChanges(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	s := source(t, d.files(), tlsreload.Options{Name: "x", Lenient: true})
	told := 0
	s.OnChange(func() { told++ })
	for _, step := range []struct {
		what string
		do   func()
		want int
	}{
		{"nothing there", func() {}, 0},
		{"files in place", func() { d.put(issue(t, ca, "a"), ca) }, 1},
		{"no change", func() {}, 1},
		{"broken", func() { d.write("tls.crt", []byte("?")) }, 1},
		{"others", func() { d.put(issue(t, ca, "b"), ca) }, 2},
	} {
		step.do()
		_ = s.Reload()
		testutil.Equal(t, told, step.want, "%s: how often it is told", step.what)
	}
}

func TestBrokenFilesKeepOldOnesAndAreLoggedOnce(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	good := issue(t, ca, "good")
	d.put(good, ca)
	log, hook := logtest.NewNullLogger()
	s := source(t, d.files(), tlsreload.Options{Name: "x", Log: log})
	sc, cc := s.Server(), s.Client("server.test")

	faults := []struct {
		name    string
		do      func()
		mention string
	}{
		{"certificate that is no PEM", func() { d.write("tls.crt", []byte("junk")) }, "tls.crt"},
		{"key of another", func() { d.put(good, ca); d.write("tls.key", issue(t, ca, "other").KeyPEM) }, "tls.key"},
		{"empty CA", func() { d.put(good, ca); d.write("ca.crt", nil) }, "ca.crt"},
		{"CA bundle cut short", func() { d.write("ca.crt", append(slices.Clone(ca.CertPEM), newCA(t).CertPEM[:300]...)) }, "ca.crt"},
		{"chain cut short", func() { d.put(good, ca); d.write("tls.crt", append(slices.Clone(good.CertPEM), ca.CertPEM[:300]...)) }, "tls.crt"},
		{"missing key", func() { d.put(good, ca); os.Remove(d.file("tls.key")) }, "tls.key"},
	}
	for i, f := range faults {
		f.do()
		hook.Reset()
		for range 3 {
			testutil.ErrorSays(t, s.Reload(), d.file(f.mention), "%s", f.name)
		}
		n := len(hook.AllEntries())
		testutil.Holds(t, n == 1 && hook.LastEntry().Level == logrus.WarnLevel, "%s: %d lines for three polls", f.name, n)
		testutil.Equal(t, serverCN(mustPass(t, handshake(t, sc, cc))), "good", "%s: served", f.name)
		wantStats(t, s, 0, i+1, true)
	}
	hook.Reset()
	d.put(good, ca) // the very files that are in use come back
	reload(t, s)
	reload(t, s)
	n := len(hook.AllEntries())
	testutil.Holds(t, n == 1 && hook.LastEntry().Level == logrus.InfoLevel, "recovery: %d lines", n)
	wantStats(t, s, 0, len(faults), false)
	d.put(issue(t, ca, "better"), ca)
	reload(t, s)
	wantStats(t, s, 1, len(faults), false)
}

// wantStats compares the counters, and whether the files are broken.
func wantStats(t *testing.T, s *tlsreload.Source, changes, faults int, broken bool) {
	t.Helper()
	if got := s.Stats(); got.Changes != int64(changes) || got.Faults != int64(faults) || got.Broken != broken {
		t.Errorf("%+v, want %d changes, %d faults and broken %v", got, changes, faults, broken)
	}
}

func TestStrictSourcesFailAtOnce(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	_, err := tlsreload.New(d.files(), tlsreload.Options{Name: "server"})
	testutil.Holds(t, errors.Is(err, fs.ErrNotExist) && strings.Contains(err.Error(), d.file("tls.crt")) &&
		strings.Contains(err.Error(), "server"), "missing files: %v", err)
	d.put(issue(t, ca, "x"), ca)
	files := d.files()
	files.Key = ""
	testutil.Fails(t, testutil.Err(tlsreload.New(files, tlsreload.Options{Lenient: true})), "a certificate without a key was taken")
	files = d.files()
	files.CA = d.path
	testutil.ErrorSays(t, testutil.Err(tlsreload.New(files, tlsreload.Options{})), "not a regular file", "a directory as CA")
}

func TestLenientSourcesWaitForTheirFiles(t *testing.T) {
	ca, d, od := newCA(t), newDir(t), newDir(t)
	od.put(issue(t, ca, "other"), ca)
	other := source(t, od.files(), tlsreload.Options{Name: "other"})
	log, hook := logtest.NewNullLogger()
	s := source(t, d.files(), tlsreload.Options{Name: "sidecar", Lenient: true, Log: log})
	sc, cc := s.Server(), s.Client("server.test")

	var notReady *tlsreload.NotReadyError
	if err := s.Ready(); !errors.As(err, &notReady) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("Ready: %v", err)
	}
	o := handshake(t, sc, other.Client("server.test"))
	testutil.Holds(t, errors.As(o.serverErr, &notReady), "server handshake: %v", o.serverErr)
	o = handshake(t, other.Server(), cc)
	testutil.Holds(t, errors.As(o.clientErr, &notReady), "client handshake: %v", o.clientErr)
	testutil.Holds(t, s.Pool() == nil && s.Certificate() == nil, "something came from nothing")
	testutil.Equal(t, len(hook.AllEntries()), 1, "lines about files that are not there yet")
	d.put(issue(t, ca, "late"), ca)
	reload(t, s)
	testutil.NoError(t, s.Ready())
	mustPass(t, handshake(t, sc, other.Client("server.test")))
	mustPass(t, handshake(t, other.Server(), cc))
}

// One that expires in use is named, once, and the new one too if it is not replaced either.
func TestCertificatesThatExpireInUseAreNamedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, d := newCA(t), newDir(t)
		d.put(issue(t, ca, "first"), ca)
		log, hook := logtest.NewNullLogger()
		s := source(t, d.files(), tlsreload.Options{Name: "x", Log: log})
		for want := range 3 {
			reload(t, s)
			reload(t, s)
			testutil.Equal(t, testutil.Lines(hook, d.file("tls.crt")), want, "lines about expired files")
			if want == 1 {
				d.put(issue(t, ca, "second"), ca)
				reload(t, s)
			}
			time.Sleep(2 * time.Hour) // certificates last for one
		}
	})
}

// Those that are not valid yet are named as well, each once: one clock or the other is wrong.
func TestCertificatesOfLaterAreNamedOnce(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	d.put(issue(t, ca, "now"), ca)
	synctest.Test(t, func(t *testing.T) { // whose time began in 2000
		log, hook := logtest.NewNullLogger()
		s := source(t, d.files(), tlsreload.Options{Name: "x", Log: log})
		reload(t, s)
		named := map[any]int{}
		for _, e := range hook.AllEntries() {
			named[e.Data["file"]]++
			testutil.Equal(t, e.Message, "certificate is not valid yet; replace it, or correct this machine's clock", "said")
		}
		testutil.Holds(t, named[d.file("tls.crt")] == 1 && named[d.file("ca.crt")] == 1 && len(named) == 2,
			"named %v", named)
	})
}

// What a wrong clock has made look expired is named when it does expire.
func TestCertificatesAreNamedAgainAfterAWrongClock(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	d.put(issue(t, ca, "x"), ca)
	log, hook := logtest.NewNullLogger()
	s := source(t, d.files(), tlsreload.Options{Name: "x", Log: log})
	for want := range 3 {
		s.WarnAsOf(time.Now())
		testutil.Equal(t, testutil.Lines(hook, d.file("tls.crt")), want, "lines about the file")
		s.WarnAsOf(time.Now().Add(2 * time.Hour)) // certificates last for one
	}
}

func TestMoreCAsAreFilesAndDirectoriesThatMayComeLater(t *testing.T) {
	ca, later, d := newCA(t), newCA(t), newDir(t)
	files := tlsreload.Files{MoreCAs: []string{d.file("a.crt"), d.file("bundles")}}
	s := source(t, files, tlsreload.Options{Name: "proxies"})
	testutil.Holds(t, s.Pool() == nil, "no files, and yet a pool: the system's CAs would be lost")
	serverOf := func(dd dir) *tls.Config {
		return source(t, tlsreload.Files{Cert: dd.file("tls.crt"), Key: dd.file("tls.key")}, tlsreload.Options{}).Server()
	}
	one, two := newDir(t), newDir(t)
	one.put(issue(t, ca, "one"), ca)
	two.put(issue(t, later, "two"), later)
	cc := s.Client("server.test")
	o := handshake(t, serverOf(one), cc)
	testutil.Holds(t, o.clientErr != nil, "the system's CAs vouch for a test server")
	d.write("a.crt", ca.CertPEM)
	testutil.NoError(t, os.Mkdir(d.file("bundles"), 0o700))
	d.write("bundles/b.pem", later.CertPEM)
	d.write("bundles/README", []byte("not a certificate"))
	d.write("bundles/trusted.crt", []byte("-----BEGIN TRUSTED CERTIFICATE-----\nAAAA\n-----END TRUSTED CERTIFICATE-----\n"))
	reload(t, s)
	mustPass(t, handshake(t, serverOf(one), cc))
	mustPass(t, handshake(t, serverOf(two), cc))
}

func TestSystemRootsJoinTheFiles(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	d.write("ca.crt", ca.CertPEM)
	both := source(t, tlsreload.Files{CA: d.file("ca.crt")}, tlsreload.Options{SystemRoots: true})
	alone := source(t, tlsreload.Files{CA: d.file("ca.crt")}, tlsreload.Options{})
	testutil.Holds(t, alone.Pool().Equal(ca.Pool()), "a CA file does not stand alone")
	testutil.Holds(t, !both.Pool().Equal(ca.Pool()) || !systemHasRoots(), "the system's CAs are missing")
}

// Directories are filled by others: one bad file must not cost the rest.
func TestBadFilesOfDirectoriesAreLeftOut(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	testutil.NoError(t, os.Mkdir(d.file("bundles"), 0o700))
	bad := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	d.write("bundles/a.pem", bad)
	d.write("bundles/b.pem", append(bad, ca.CertPEM...)) // bad and good in one file
	if err := os.Mkdir(d.file("bundles/c.pem"), 0o700); err != nil {
		t.Fatal(err) // not readable, for root either
	}
	log, lines := logtest.NewNullLogger()
	s := source(t, tlsreload.Files{MoreCAs: []string{d.file("bundles")}}, tlsreload.Options{Name: "proxies", Log: log})
	testutil.Holds(t, s.Pool().Equal(ca.Pool()), "the good certificate is missing")
	if e := lines.LastEntry(); e == nil || len(lines.AllEntries()) != 1 || !strings.Contains(e.Message, "3 files") || !strings.Contains(fmt.Sprint(e.Data["error"]), "a.pem") {
		t.Errorf("said %v", lines.AllEntries())
	}
	reload(t, s)
	testutil.Equal(t, len(lines.AllEntries()), 1, "lines for what has not changed")
	d.write("named.pem", append(bad, ca.CertPEM...))
	_, err := tlsreload.New(tlsreload.Files{MoreCAs: []string{d.file("named.pem")}}, tlsreload.Options{Name: "x"})
	testutil.Fails(t, err, "a broken file that was named is taken")
}
