package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		"port 0":               {CheckPorts(Port{Flag: "a", Least: 1}), "--a=0: must be from 1 to 65535", true},
		"one port twice":       {CheckPorts(Port{Flag: "a", Number: 80, Host: "x"}, Port{Flag: "b", Number: 80}), "--a and --b are both 80", true},
		"on two addresses":     {CheckPorts(Port{Flag: "a", Number: 80, Host: "x"}, Port{Flag: "b", Number: 80, Host: "y"}), "", false},
		"one of them unused":   {CheckPorts(Port{Flag: "a", Number: 80, Unused: true}, Port{Flag: "b", Number: 80}), "", false},
		"files":                {CheckFiles(Value{"a", file}, Value{"b", ""}), "", false},
		"a file that is not":   {CheckFiles(Value{"a", file}, Value{"b", file + "x"}), "--b: " + file + "x: no such file or directory", false},
		"a directory":          {CheckFiles(Value{"a", dir}), "--a: " + dir + " is a directory", false},
		"a pair":               {CheckPair(Value{"a", "x"}, Value{"b", "y"}), "", false},
		"neither":              {CheckPair(Value{"a", ""}, Value{"b", ""}), "", false},
		"the first alone":      {CheckPair(Value{"a", "x"}, Value{"b", ""}), "--a is given without --b", true},
		"the second alone":     {CheckPair(Value{"a", ""}, Value{"b", "y"}), "--b is given without --a", true},
		"a choice":             {CheckChoice(Value{"a", ""}, "", "x"), "", false},
		"no choice":            {CheckChoice(Value{"a", "z"}, "", "x", "y"), `--a="z": must be one of x, y`, true},
		"a server's name":      {CheckServerName(Value{"a", "A-1.example.com."}), "", false},
		"no server's name":     {CheckServerName(Value{"a", ""}), "", false},
		"an address as name":   {CheckServerName(Value{"a", "10.0.0.1"}), "--a=10.0.0.1: TLS asks for names, not for addresses", true},
		"an IPv6 address":      {CheckServerName(Value{"a", "[2001:db8::1]"}), "--a=[2001:db8::1]: TLS asks for names", true},
		"a name with a port":   {CheckServerName(Value{"a", "x:80"}), `--a="x:80": want a DNS name`, true},
		"a wildcard as name":   {CheckServerName(Value{"a", "*.x"}), `--a="*.x": want a DNS name`, true},
		"an id":                {CheckID(Value{"a", "Any.Id 1"}, 8), "", false},
		"an id that is long":   {CheckID(Value{"a", "Any.Id 1"}, 7), "--a: an id has at most 7", true},
		"an id that is no id":  {CheckID(Value{"a", "x\n"}, 8), "--a: an id has", true},
		"an id that is not in": {CheckID(Value{"a", "ä"}, 8), "--a: an id has", true},
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
