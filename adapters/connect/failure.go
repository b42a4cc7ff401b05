package connect

import (
	"net/http"
	"strings"

	"konnectivity/tunnel"
)

// failureTexts tells what a konnectivity server's refusal is about. Servers
// before ours pass the agent's words on in the body of one and the same 502, so
// the words (the Go standard library's, which have been stable since Go 1.0)
// are all there is. First match wins; all lower case.
var failureTexts = []struct {
	text    string
	failure tunnel.Failure
}{
	{"connection refused", tunnel.FailRefused},
	{"no such host", tunnel.FailNoSuchHost},
	{"no route to host", tunnel.FailHostUnreach},
	{"host is unreachable", tunnel.FailHostUnreach},
	{"network is unreachable", tunnel.FailNetUnreach},
	{"cannot assign requested address", tunnel.FailNetUnreach},
	{"server misbehaving", tunnel.FailResolve},
	{"temporary failure in name resolution", tunnel.FailResolve},
	{"name lookup failed", tunnel.FailResolve},
	{"no agent available", tunnel.FailNoAgent},
	{"no tunnels available", tunnel.FailNoAgent},
	{"no backend available", tunnel.FailNoAgent},
	{"agent went away", tunnel.FailAgentLost},
	{"too many open files", tunnel.FailExhausted},
	{"destination not allowed", tunnel.FailDenied},
	{"operation not permitted", tunnel.FailDenied},
	{"permission denied", tunnel.FailDenied},
	{"connection reset", tunnel.FailReset},
	{"i/o timeout", tunnel.FailTimeout},
	{"connection timed out", tunnel.FailTimeout},
	{"deadline exceeded", tunnel.FailTimeout},
	{"dial timeout", tunnel.FailTimeout},
	{"missing port in address", tunnel.FailBadAddress},
	{"invalid port", tunnel.FailBadAddress},
	{"unknown port", tunnel.FailBadAddress},
	{"bad address", tunnel.FailBadAddress},
	{"tunnel unavailable", tunnel.FailUnavailable},
}

// ServerFailure is what a konnectivity server's refusal says about the dial:
// by its body where the status leaves it open, else by the status.
func ServerFailure(e *StatusError) tunnel.Failure {
	body := strings.ToLower(e.Body)
	for _, t := range failureTexts {
		if strings.Contains(body, t.text) {
			return t.failure
		}
	}
	switch e.Status {
	case http.StatusBadRequest:
		return tunnel.FailBadAddress
	case http.StatusForbidden:
		return tunnel.FailDenied
	case http.StatusProxyAuthRequired, http.StatusUnauthorized:
		return tunnel.FailAuth
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return tunnel.FailTimeout
	case http.StatusInternalServerError: // upstream: no agent
		return tunnel.FailNoAgent
	case http.StatusServiceUnavailable, http.StatusMethodNotAllowed:
		return tunnel.FailUnavailable
	default:
		return tunnel.FailInternal
	}
}

// ProxyFailure is what the refusal of any other HTTP proxy says. Its body is a
// page for people and is not looked at.
func ProxyFailure(e *StatusError) tunnel.Failure {
	switch e.Status {
	case http.StatusProxyAuthRequired:
		return tunnel.FailAuth
	case http.StatusForbidden, http.StatusUnavailableForLegalReasons:
		return tunnel.FailDenied
	case http.StatusGatewayTimeout:
		return tunnel.FailTimeout
	case http.StatusBadGateway:
		return tunnel.FailHostUnreach
	default:
		return tunnel.FailUnavailable
	}
}
