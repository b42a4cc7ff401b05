package files

import (
	"fmt"
	"strings"
)

// MaxToken is how long a bearer token may be: what a HELLO of the link has room for beside
// the longest id and identifiers of an agent. Service account tokens have about 1 KiB.
const MaxToken = 7 << 10

// Token returns a function that reads the bearer token in path each time it is called, so
// that one that kubelet rotates is always the current one. Its errors do not tell what the
// file has. It may be called from any goroutine.
func Token(path string) func() (string, error) {
	return func() (string, error) {
		content, err := Read(path, MaxToken)
		if err != nil {
			return "", fmt.Errorf("read the service account token: %w", err)
		}
		token := strings.TrimSpace(string(content))
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", fmt.Errorf("%s holds no bearer token", path)
		}
		return token, nil
	}
}
