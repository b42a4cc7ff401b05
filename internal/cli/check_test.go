package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"konnectivity/internal/testutil"
)

// Every check names the flags it is about, and tells what the command line
// alone shows to be wrong from what may be right tomorrow.
func TestChecks(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testutil.NoError(t, os.WriteFile(file, nil, 0o600))
	busy := testutil.Listen(t)
	listen := func(address string) error {
		l, err := Listen("port", address)
		if err == nil {
			_ = l.Close()
		}
		return err
	}
	taken := func(p Port) error { _, err := p.Listen(); return err }
	given := func(a, b string) *pflag.FlagSet {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.String("a", a, "")
		set.String("b", b, "")
		return set
	}
	for what, c := range map[string]struct {
		err   error
		want  string // "" for none
		usage bool
	}{
		"a free port":          {listen("127.0.0.1:0"), "", false},
		"a port in use":        {listen(busy.Addr().String()), "--port: cannot listen on " + busy.Addr().String() + ": bind: address already in use", false},
		"an address not ours":  {taken(Port{Flag: "a", Host: "2001:db8::1", Number: 80}), "--a: cannot listen on [2001:db8::1]:80: ", false},
		"ports":                {CheckPorts(Port{Flag: "a", Number: 1}, Port{Flag: "b", Number: 65535}, Port{Flag: "c"}, Port{Flag: "d"}), "", false},
		"no port":              {CheckPorts(Port{Flag: "a", Number: 65536}), "--a=65536: must be from 0 to 65535", true},
		"port 0":               {CheckPorts(Port{Flag: "a", Least: 1}), "--a=0: it must be from 1 to 65535; this port cannot be switched off", true},
		"one port twice":       {CheckPorts(Port{Flag: "a", Number: 80, Host: "x"}, Port{Flag: "b", Number: 80}), "--a and --b are both 80", true},
		"on two addresses":     {CheckPorts(Port{Flag: "a", Number: 80, Host: "x"}, Port{Flag: "b", Number: 80, Host: "y"}), "", false},
		"one of them unused":   {CheckPorts(Port{Flag: "a", Number: 80, Unused: true}, Port{Flag: "b", Number: 80}), "", false},
		"files":                {CheckFiles(given(file, ""), "a", "b"), "", false},
		"a file that is not":   {CheckFiles(given(file, file+"x"), "a", "b"), "--b: " + file + "x: no such file or directory", false},
		"a directory":          {CheckFiles(given(dir, ""), "a"), "--a: " + dir + " is a directory", false},
		"a pair":               {CheckPair(given("x", "y"), "a", "b"), "", false},
		"neither":              {CheckPair(given("", ""), "a", "b"), "", false},
		"the first alone":      {CheckPair(given("x", ""), "a", "b"), "--a is given without --b", true},
		"the second alone":     {CheckPair(given("", "y"), "a", "b"), "--b is given without --a", true},
		"a server's name":      {CheckServerName("A-1.example.com."), "", false},
		"no server's name":     {CheckServerName(""), "", false},
		"an address as name":   {CheckServerName("10.0.0.1"), "--server-name=10.0.0.1: TLS asks for names, not for addresses", true},
		"an IPv6 address":      {CheckServerName("[2001:db8::1]"), "--server-name=[2001:db8::1]: TLS asks for names", true},
		"a name with a port":   {CheckServerName("x:80"), `--server-name="x:80": want a DNS name`, true},
		"a wildcard as name":   {CheckServerName("*.x"), `--server-name="*.x": want a DNS name`, true},
		"an id":                {CheckID("a", "Any.Id 1", 8), "", false},
		"an id that is long":   {CheckID("a", "Any.Id 1", 7), "--a: an id has at most 7", true},
		"an id that is no id":  {CheckID("a", "x\n", 8), "--a: an id has", true},
		"an id that is not in": {CheckID("a", "ä", 8), "--a: an id has", true},
	} {
		var usage *UsageError
		switch {
		case c.want == "" && c.err != nil:
			t.Errorf("%s: %v", what, c.err)
		case c.want != "" && (c.err == nil || !strings.HasPrefix(c.err.Error(), c.want) || errors.As(c.err, &usage) != c.usage):
			t.Errorf("%s: %v, want %s (usage: %v)", what, c.err, c.want, c.usage)
		}
	}
}
