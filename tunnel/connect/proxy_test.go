package connect

import (
	"fmt"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestParseProxy(t *testing.T) {
	for text, want := range map[string]string{
		"http://proxy:3128":         "http proxy proxy:3128 ",
		"proxy:3128":                "http proxy proxy:3128 ",
		"proxy":                     "http proxy proxy:80 ",
		" https://proxy.example/ ":  "https proxy.example proxy.example:443 ",
		"https://10.0.0.1":          "https 10.0.0.1 10.0.0.1:443 ",
		"http://[2001:db8::1]":      "http 2001:db8::1 [2001:db8::1]:80 ",
		"[2001:db8::1]:8080":        "http 2001:db8::1 [2001:db8::1]:8080 ",
		"http://user:pass@proxy:1":  "http proxy proxy:1 Basic dXNlcjpwYXNz",
		"user:p%40ss%3A%2F@proxy:1": "http proxy proxy:1 Basic dXNlcjpwQHNzOi8=",
		"http://user@proxy:1":       "http proxy proxy:1 Basic dXNlcjo=",
		"HTTP://proxy:1":            "http proxy proxy:1 ",
	} {
		p, err := ParseProxy(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		scheme := map[bool]string{true: "https", false: "http"}[p.TLS]
		testutil.Equal(t, fmt.Sprint(scheme, " ", p.Host, " ", p.Address, " ", p.auth), want, "%q", text)
		testutil.Equal(t, p.String(), scheme+"://"+p.Address, "%q in a log", text)
	}
	testutil.Equal(t, testutil.Must(ParseProxy(" "))(t) == nil, true, "nothing is no proxy")
	for _, text := range []string{
		"socks5://u:hunter2@proxy:1", "http://", "http://u:hunter2@", "http://u:hunter2@proxy:0", "http://u:hunter2@proxy:x", "http://u:hunter2#x@proxy:1/%zz", "u:hunter2@pro xy", "http://u:hunter2@pro\x00xy",
		"http://u:hunter2@[::1", "ftp://hunter2",
	} {
		p, err := ParseProxy(text)
		if err == nil || p != nil {
			t.Errorf("%q is accepted", text)
		} else if strings.Contains(err.Error(), "hunter2") || !strings.HasSuffix(err.Error(), "; want http://[user:password@]host[:port] or https://") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
