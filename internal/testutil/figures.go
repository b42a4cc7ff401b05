package testutil

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Says fails t unless a page of the docs says a part of a sentence, wherever its lines break,
// with these figures: each %v stands for one.
func Says(t testing.TB, page, format string, figures ...int64) {
	t.Helper()
	words := make([]any, len(figures))
	for i, n := range figures {
		words[i] = withComma(n)
	}
	said, text := fmt.Sprintf(format, words...), string(Must(os.ReadFile(page))(t))
	Holds(t, strings.Contains(strings.Join(strings.Fields(text), " "), said), "%s does not say %q", page, said)
}

// withComma is a number below a million as the docs write it.
func withComma(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
