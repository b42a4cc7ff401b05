package tunnel

import "strings"

// failureTexts are what the Go runtime, the kernel and upstream's programs say.
// The first that is found counts; all lower case.
var failureTexts = []struct {
	text    string
	failure Failure
}{
	{"connection refused", FailRefused},
	{"no such host", FailNoSuchHost},
	{"no route to host", FailHostUnreach},
	{"host is down", FailHostUnreach},
	{"network is unreachable", FailNetUnreach},
	{"network is down", FailNetUnreach},
	{"cannot assign requested address", FailNetUnreach},
	{"too many open files", FailExhausted},
	{"no buffer space available", FailExhausted},
	{"cannot allocate memory", FailExhausted},
	{"share is used up", FailExhausted}, // of our own server, which says more than what ran out
	{"destination not allowed", FailDenied},
	{"permission denied", FailDenied},
	{"operation not permitted", FailDenied},
	{"connection reset", FailReset},
	{"timeout", FailTimeout},
	{"timed out", FailTimeout},
	{"deadline exceeded", FailTimeout},
	{"operation was canceled", FailCancelled},
	{"server misbehaving", FailResolve},
	{"temporary failure in name resolution", FailResolve},
	{"name lookup failed", FailResolve},
	{"no suitable address", FailBadAddress},
	{"missing port in address", FailBadAddress},
	{"too many colons in address", FailBadAddress},
	{"missing address", FailBadAddress},
	{"bad address", FailBadAddress},
	{"invalid port", FailBadAddress},
	{"unknown port", FailBadAddress},
	{"unknown network", FailBadAddress},
	{"no agent available", FailNoAgent},
	{"no tunnels available", FailNoAgent},
	{"no backend available", FailNoAgent},
	{"agent went away", FailAgentLost},
	{"tunnel unavailable", FailUnavailable},
	{"bound reached", FailBound},
}

// OneLine puts spaces in the place of control characters, for a log line or a header.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// GuessFailure tells a failure by its text. It is for what old peers say of a
// dial, where the text is all there is (DIAL_RSP, the body of a CONNECT's 502),
// and for nothing else. It returns FailInternal for words it does not know.
func GuessFailure(text string) Failure {
	lower := strings.ToLower(text)
	for _, t := range failureTexts {
		if strings.Contains(lower, t.text) {
			return t.failure
		}
	}
	return FailInternal
}

// AuthAdvice says what to do about a proxy that wants authentication.
const AuthAdvice = "give user and password in its URL, or others than are there, for Basic authentication"
